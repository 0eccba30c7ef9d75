"""What is refused before it is accepted, and whose fault a refusal is."""

import pytest

from mtp_daemon.errors import DaemonBug, EnvironmentFailure, RequestError, RequestKind, UserError
from mtp_daemon.front.desk import _kind
from mtp_daemon.front.limits import MAX_TOKEN_BYTES, Limits, check_start
from mtp_loader.errors import BadRequest, DamagedCheckpoint, LoaderBug
from mtp_protocol.bounds import MAX_ITEMS
from mtp_protocol.client_messages import Submit
from mtp_protocol.codec import MAX_MESSAGE_BYTES
from mtp_protocol.engine_messages import Start, to_engine
from mtp_protocol.sampling import Sampling

LIMITS = Limits(context=1 << 24, default_max_tokens=8, max_queue=8, max_prompt_bytes=15 << 20, keep_limit_s=100.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EnvironmentFailure("not enough memory"), "environment"),
        (DamagedCheckpoint("f", "cut"), "environment"),
        (UserError("below the minimum"), "bad_request"),
        (BadRequest("below the minimum"), "bad_request"),
        (DaemonBug("?"), "internal"),
        (LoaderBug("?"), "internal"),
    ],
)
def test_a_refusal_says_whose_fault_it_is(error: Exception, kind: RequestKind) -> None:
    """Too little memory for a size is no mistake of the one who asks, and a bug of ours is neither."""
    assert _kind(error) == kind  # type: ignore[arg-type]


def start(prompt: str, max_tokens: int, delivered: tuple[int, ...] = ()) -> Start:
    return Start(b"r" * 16, prompt, None, False, None, max_tokens, (), Sampling(), None, None, delivered)


def test_what_does_not_fit_a_message_to_the_engine_is_refused_at_once() -> None:
    """A prompt that fits now must still fit after a crash, together with the whole answer."""
    tokens = 200_000
    room = MAX_MESSAGE_BYTES - len(to_engine.encode(start("", tokens))) - MAX_TOKEN_BYTES * tokens
    text = "x" * (room - 8)  # MessagePack writes the length of a long text, and of a long array, in four bytes more
    check_start(start(text, tokens))
    assert len(to_engine.encode(start(text, tokens, tuple([1 << 31] * tokens)))) <= MAX_MESSAGE_BYTES
    for prompt, answer in ((text + "x" * 8, tokens), (text, tokens + 2), ("x" * MAX_MESSAGE_BYTES, 1)):
        with pytest.raises(RequestError, match=str(MAX_MESSAGE_BYTES)) as refused:
            check_start(start(prompt, answer))
        assert refused.value.kind == "too_long"


def test_an_answer_longer_than_a_message_can_hold_is_refused() -> None:
    """After a crash all of it would have to travel at once."""
    with pytest.raises(RequestError, match=str(MAX_ITEMS)):
        LIMITS.check(Submit(1, prompt="x", max_tokens=MAX_ITEMS + 1))


def test_a_system_message_is_never_dropped_in_silence() -> None:
    """With token ids there is no template it could go into."""
    with pytest.raises(RequestError, match="system"):
        LIMITS.check(Submit(1, prompt_ids=(1, 2), system="be brief"))


def test_an_answer_is_no_longer_than_the_model_reads() -> None:
    """The service's context may be larger than the model's: the smaller one counts, and is the one that is named."""
    limits = LIMITS.within(2048)
    for asked in (2049, 4000, 99_999):
        with pytest.raises(RequestError, match="2048") as refused:
            limits.check(Submit(1, prompt="x", max_tokens=asked))
        assert refused.value.kind == "too_long"
    assert limits.check(Submit(1, prompt="x", max_tokens=2048)) == 2048
    assert LIMITS.within(1 << 30).context == LIMITS.context
