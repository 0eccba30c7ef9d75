"""One Start, checked: what the user asked for, against what this model and these settings can do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from mtp_daemon.engine.decode.settings import WAYS, DecodeSettings, Way
from mtp_daemon.engine.depth import DepthController, DepthSettings, make_controller
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.process.serving import Serving
from mtp_protocol.engine_messages import Start


@dataclass(frozen=True)
class Prepared:
    """`limit`: the most tokens the answer may have, so that prompt and answer fit the context. `learns`: it drafts in
    the service's own way, so that what its controller learns holds for the next request.
    """

    prompt: tuple[int, ...]
    decode: DecodeSettings
    controller: DepthController
    limit: int
    learns: bool


def prepare(start: Start, serving: Serving) -> Prepared:
    """Raises RequestRefused: bad_request, too_long or unsupported, with what is wrong and what to do."""
    prompt = _prompt(start, serving)
    if any(not stop for stop in start.stop):
        raise RequestRefused("a stop string must not be empty", "bad_request")
    if start.max_tokens < 0:
        raise RequestRefused(f"max_tokens must be 0 or more, not {start.max_tokens}", "bad_request")
    _check_bias(start, serving.vocabulary.size)
    decode, controller = _way_to_draft(start, serving)
    learns = start.speculation is None and start.depth is None
    return Prepared(prompt, decode, controller, _limit(start, len(prompt), serving), learns)


def _prompt(start: Start, serving: Serving) -> tuple[int, ...]:
    if (start.prompt is None) == (start.prompt_ids is None):
        raise RequestRefused("give either a prompt or prompt_ids", "bad_request")
    if start.prompt_ids is not None:
        return serving.vocabulary.check(start.prompt_ids)
    assert start.prompt is not None
    most = serving.context - min(1, start.max_tokens)
    least = serving.vocabulary.at_least(start.prompt, most, raw=start.raw, system=start.system)
    if least > most:
        raise _too_long(f"at least {least}", serving)
    return serving.vocabulary.encode(start.prompt, raw=start.raw, system=start.system)


def _limit(start: Start, prompt: int, serving: Serving) -> int:
    room = serving.context - prompt
    if room < min(1, start.max_tokens):
        raise _too_long(str(prompt), serving)
    return min(start.max_tokens, room)


def _too_long(tokens: str, serving: Serving) -> RequestRefused:
    context = serving.context
    larger = "" if context < serving.settings.context else " or serve with a larger --context"
    whose = "the context" if larger else "the model's context"
    return RequestRefused(f"the prompt has {tokens} tokens and {whose} {context}: shorten it{larger}", "too_long")


def _check_bias(start: Start, vocabulary: int) -> None:
    unknown: Sequence[int] = [token for token in start.sampling.logit_bias if token >= vocabulary]
    if unknown:
        raise RequestRefused(f"logit_bias names token {unknown[0]}; the vocabulary has {vocabulary}", "bad_request")


def _way_to_draft(start: Start, serving: Serving) -> tuple[DecodeSettings, DepthController]:
    """The service's way unless the request names one; a depth that it names is kept to."""
    decode, controller = serving.settings.decode, serving.controller.successor()
    if start.speculation is not None:
        if start.speculation not in WAYS:
            raise RequestRefused(
                f"speculation must be one of {', '.join(WAYS)}, not {start.speculation!r}", "bad_request"
            )
        decode = replace(decode, speculation=cast(Way, start.speculation))
    if start.depth is not None:
        try:
            controller = make_controller(DepthSettings(controller="constant", depth=start.depth))
        except ValueError as error:
            raise RequestRefused(str(error), "bad_request") from error
        decode = replace(decode, depth=start.depth)
    return decode, controller
