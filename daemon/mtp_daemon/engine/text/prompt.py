"""The model's tokenizer: prompts to ids, ids to text, the ids that end a text. Read from the model's directory only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from mlx_lm import tokenizer_utils

from mtp_daemon.engine.config_number import config_number
from mtp_daemon.engine.errors import RequestRefused, first_line
from mtp_daemon.engine.text.length import at_least, longest_token, normalised
from mtp_loader.store.files import model_sizes

# What transformers reads beside the vocabulary, where it is there.
_SETTINGS_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


@dataclass(frozen=True)
class Vocabulary:
    """`eos`: every id that ends a text. `size`: ids below it are valid. `longest`: see `longest_token`."""

    tokenizer: Any
    eos: frozenset[int]
    size: int
    longest: int | None = None

    @property
    def chat_template(self) -> bool:
        return bool(self.tokenizer.has_chat_template)

    def decode(self, ids: Sequence[int]) -> str:
        """Exactly what the ids say: nothing is tidied up and special tokens are shown."""
        text: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return text

    def encode(self, prompt: str, *, raw: bool, system: str | None) -> tuple[int, ...]:
        """The prompt's ids: through the chat template when there is one and `raw` is not asked for.

        Raises RequestRefused for an empty prompt and for what the template refuses.
        """
        if not prompt:
            raise RequestRefused("the prompt is empty", "bad_request")
        if raw or not self.chat_template:
            if system is not None:
                why = "raw prompts take none" if raw else "this model has no chat template"
                raise RequestRefused(f"a system text cannot be given: {why}", "bad_request")
            ids = self._plain(prompt)
        else:
            ids = self._apply_template(prompt, system, tokenize=True)
        if not ids:
            raise RequestRefused("the prompt has no tokens", "bad_request")
        return tuple(int(token) for token in ids)

    def at_least(self, prompt: str, most: int, *, raw: bool, system: str | None) -> int:
        """See `length.at_least`, of the text that `encode` would tokenise. Raises RequestRefused as that does."""
        if len(prompt) + len(system or "") <= most:
            return 0
        text = prompt if raw or not self.chat_template else str(self._apply_template(prompt, system, tokenize=False))
        if self.longest is not None:
            text = normalised(self.tokenizer, text)
        return at_least(text, most, self.longest, lambda t: len(self.tokenizer.encode(t, add_special_tokens=False)))

    def check(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Ids given by the user. Raises RequestRefused when there are none, or one is not of this vocabulary."""
        if not ids:
            raise RequestRefused("the prompt is empty", "bad_request")
        for token in ids:
            if not 0 <= token < self.size:
                raise RequestRefused(f"prompt id {token} is not in this vocabulary of {self.size}", "bad_request")
        return tuple(ids)

    def _plain(self, prompt: str) -> Sequence[int]:
        # As mlx-lm: a prompt that spells its own beginning of text gets no second one.
        bos = self.tokenizer.bos_token
        special = bos is None or not prompt.startswith(bos)
        ids: Sequence[int] = self.tokenizer.encode(prompt, add_special_tokens=special)
        return ids

    def _apply_template(self, prompt: str, system: str | None, *, tokenize: bool) -> Any:
        """The prompt in the model's chat template: its ids, or its text."""
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        # A template is the model's program: what it may raise is not ours to list, and none of it is our bug.
        try:
            return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=tokenize)
        except Exception as error:
            raise RequestRefused(f"the model's chat template refuses this prompt: {error}", "bad_request") from error


def load_vocabulary(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    """The tokenizer in the model directory `path`, whose config.json is `config`. Never goes to the network.

    The ids that end a text are those of config.json, of generation_config.json and of the tokenizer together: each of
    the three is incomplete in some published checkpoint. Raises RequestRefused when there is no usable tokenizer.
    """
    # transformers makes an empty tokenizer, of bytes or of nothing, from config.json alone.
    if not any(file.name in VOCABULARY_FILES or file.suffix == ".tiktoken" for file in path.iterdir()):
        raise RequestRefused(f"{path} has no tokenizer: none of {', '.join(VOCABULARY_FILES)} is there")
    for name in _SETTINGS_FILES:
        _json_object(path / name)
    try:
        tokenizer = tokenizer_utils.load(path, {"local_files_only": True})
    except Exception as error:  # the libraries' own for whatever is in a file that somebody made: none of it is our bug
        raise RequestRefused(
            f"the tokenizer in {path} cannot be loaded: {first_line(error)}: bring its files back"
        ) from error
    _check_template(tokenizer, path)
    sizes = model_sizes(dict(config))
    eos = {*tokenizer.eos_token_ids, *_ids(config.get("eos_token_id")), *_ids(sizes.get("eos_token_id"))}
    eos |= set(_ids(_json_object(path / "generation_config.json").get("eos_token_id")))
    size = config_number(sizes, "vocab_size", 1, 1 << 31)
    return Vocabulary(tokenizer, frozenset(eos), size or len(tokenizer), longest_token(tokenizer))


def _check_template(tokenizer: Any, path: Path) -> None:
    """A chat template that no prompt can pass is found at the start, not by each prompt."""
    if not tokenizer.has_chat_template:
        return
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True, tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        alone = path / "chat_template.jinja"
        file = alone if alone.is_file() else path / "tokenizer_config.json"
        raise RequestRefused(
            f"{file}: the chat template is not Jinja: {error} (line {error.lineno}): mend or remove it"
        ) from error
    except jinja2.TemplateError:
        pass  # it refuses this conversation; others may be to its liking
    except Exception as error:  # the libraries' own, as for a template that is no text
        raise RequestRefused(
            f"the chat template in {path} cannot be used: {first_line(error)}: mend or remove it"
        ) from error


def _json_object(file: Path) -> dict[str, Any]:
    """An empty one where there is no such file; raises RequestRefused, naming it, where it is no JSON object."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RequestRefused(f"{file} cannot be read: {first_line(error)}: bring it back or remove it") from error
    if not isinstance(settings, dict):
        raise RequestRefused(f"{file} holds a {type(settings).__name__} where settings should be: mend or remove it")
    return settings


def _ids(value: Any) -> list[int]:
    """The ids in a config's value: one, a list, or none."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
