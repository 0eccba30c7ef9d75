"""A command's exit code says whose fault it was: a failing disk must not look like a wrong argument."""

import argparse
import os
import signal
from pathlib import Path

import pytest

from mtp_client.errors import ClientError, ConnectionLost, NotRunning, RequestRefused, ServiceBug, ServiceError
from mtp_daemon import cli
from mtp_daemon.commands import status, stop
from mtp_daemon.commands.asking import _of_our_tree, service
from mtp_daemon.errors import DaemonBug, DaemonError, EnvironmentFailure, NotServing, UserError


@pytest.mark.parametrize(
    ("client", "daemon"),
    [
        (NotRunning("nobody"), NotServing),
        (RequestRefused("bad_request", "no"), UserError),
        (ServiceError("environment", "the disk"), EnvironmentFailure),
        (ConnectionLost("gone"), EnvironmentFailure),
        (ServiceBug("internal", "ours"), DaemonBug),
    ],
)
def test_each_kind_of_failure_keeps_its_kind(client: ClientError, daemon: type[DaemonError]) -> None:
    assert type(_of_our_tree(client)) is daemon


def test_no_service_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotServing, match="mtpd serve"), service(tmp_path / "run", "a test"):
        pass


class _RefusingClient:
    def __init__(self, run_directory: Path, name: str) -> None: ...

    def __enter__(self) -> "_RefusingClient":
        return self

    def __exit__(self, *error: object) -> None: ...

    def shutdown(self, deadline_s: float) -> None:
        raise RequestRefused("bad_request", f"deadline_s must not be {deadline_s}")


def test_a_deadline_that_the_service_refuses_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    killed: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(stop, "Client", _RefusingClient)
    monkeypatch.setattr(stop, "daemon_pid", lambda run_directory: 1 if not killed else None)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    with pytest.raises(UserError, match="deadline_s"):
        stop.run(argparse.Namespace(run_dir=tmp_path, deadline=float("nan")))
    assert not killed


def test_a_reader_of_our_output_that_leaves_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(args: argparse.Namespace) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(status, "run", gone)
    with open(os.devnull, "w") as errors:
        monkeypatch.setattr("sys.stderr", errors)
        assert cli.main(["status"]) == 1
    assert "a bug of ours" not in caplog.text
