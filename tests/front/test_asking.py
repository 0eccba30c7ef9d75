"""A command's exit code says whose fault it was: a failing disk must not look like a wrong argument."""

from pathlib import Path

import pytest

from mtp_client.errors import ClientError, ConnectionLost, NotRunning, RequestRefused, ServiceBug, ServiceError
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
