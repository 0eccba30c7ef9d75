"""A request's boundary: what no one foresaw is answered, and ends the process's trust in itself."""

from typing import Any, cast

import pytest

from mtp_daemon.engine.errors import EngineBug, EngineStopping, RequestRefused
from mtp_daemon.engine.process import answering
from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_protocol import engine_messages as e
from mtp_protocol.sampling import Sampling

START = e.Start(b"r", "hi", None, True, None, 4, (), Sampling())


def answered(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, sent: list[e.FromEngine], *, by_front: bool = True
) -> None:
    mailbox = Mailbox()
    mailbox.stop(by_front=by_front)

    def broken(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(answering, "prepare", broken)
    try:
        answering.answer(START, cast(Any, None), sent.append, mailbox, Activity())
    finally:
        mailbox.close()


@pytest.mark.parametrize("fault", [RuntimeError("boom"), EngineBug("a slot lies")], ids=str)
def test_a_bug_is_answered_and_then_ends_the_process(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    sent: list[e.FromEngine] = []
    with pytest.raises(EngineBug, match=str(fault)):
        answered(monkeypatch, fault, sent)
    (failed,) = sent
    assert isinstance(failed, e.Failed)
    assert (failed.request, failed.kind) == (b"r", "internal")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(RequestRefused("no", "too_long"), "too_long"), (EngineStopping("now"), "environment")],
    ids=str,
)
def test_other_faults_are_answered_and_no_more(monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: str) -> None:
    """One terminal message, of a stable kind."""
    sent: list[e.FromEngine] = []
    answered(monkeypatch, fault, sent)
    (failed,) = sent
    assert isinstance(failed, e.Failed)
    assert (failed.request, failed.kind) == (b"r", kind)


def test_a_stop_that_is_not_the_fronts_leaves_the_request_to_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Failed would end it for the client, though the service goes on."""
    sent: list[e.FromEngine] = []
    with pytest.raises(EngineStopping):
        answered(monkeypatch, EngineStopping("now"), sent, by_front=False)
    assert sent == []
