"""Prompts to ids, and the ids that end a text."""

import json
from pathlib import Path

import pytest

from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.text import load_vocabulary
from support.tokenizer import EOS, write_tokenizer
from support.tokenizer_spm import write_spm_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and m.content == 'bad' %}"
    "{{ raise_exception('no such system') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)


def test_text_is_templated_unless_raw(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 300, chat_template=TEMPLATE)
    vocabulary = load_vocabulary(tmp_path, {"vocab_size": 300})
    assert vocabulary.chat_template
    assert vocabulary.encode("hi", raw=False, system=None) == tuple(b"[user]hi[answer]")
    assert vocabulary.encode("hi", raw=False, system="be brief") == tuple(b"[system]be brief[user]hi[answer]")
    assert vocabulary.encode("hi", raw=True, system=None) == tuple(b"hi")


def test_what_cannot_be_made_a_prompt_is_refused_by_name(tmp_path: Path) -> None:
    """An empty prompt is refused by name, and a system text is never dropped silently."""
    write_tokenizer(tmp_path, 300, chat_template=TEMPLATE)
    templated = load_vocabulary(tmp_path, {"vocab_size": 300})
    write_tokenizer(tmp_path, 300)
    plain = load_vocabulary(tmp_path, {"vocab_size": 300})
    for refused in (
        lambda: plain.encode("", raw=False, system=None),
        lambda: plain.encode("hi", raw=False, system="be brief"),
        lambda: templated.encode("hi", raw=True, system="be brief"),
        lambda: templated.encode("hi", raw=False, system="bad"),
        lambda: plain.check([]),
        lambda: plain.check([1, 300]),
        lambda: plain.check([-1]),
    ):
        with pytest.raises(RequestRefused) as refusal:
            refused()
        assert refusal.value.kind == "bad_request"
    assert plain.check([0, 299]) == (0, 299)


def test_a_beginning_of_text_is_not_doubled(tmp_path: Path) -> None:
    write_spm_tokenizer(tmp_path)
    vocabulary = load_vocabulary(tmp_path, {"vocab_size": 270})
    assert vocabulary.encode("<s>hello", raw=True, system=None).count(1) <= 1


@pytest.mark.parametrize("where", ["config", "text_config", "generation_config", "tokenizer"])
def test_an_end_of_text_id_counts_wherever_it_is_declared(tmp_path: Path, where: str) -> None:
    """One checkpoint declares it in one file only, the next in another."""
    write_tokenizer(tmp_path, 300)
    config: dict[str, object] = {"vocab_size": 300}
    wanted = {"tokenizer": EOS}.get(where, 299)
    if where == "config":
        config["eos_token_id"] = [298, 299]
    if where == "text_config":
        config["text_config"] = {"vocab_size": 300, "eos_token_id": 299}
    if where == "generation_config":
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 299]}))
    assert wanted in load_vocabulary(tmp_path, config).eos


def test_a_generation_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """Its end-of-text ids would be missed in silence, and answers would not end."""
    write_tokenizer(tmp_path, 300)
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(RequestRefused, match=r"generation_config\.json"):
        load_vocabulary(tmp_path, {"vocab_size": 300})


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_next"}')
    with pytest.raises(RequestRefused, match="tokenizer"):
        load_vocabulary(tmp_path, {"model_type": "qwen3_next"})
