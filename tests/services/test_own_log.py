"""The front's log stays small where nobody else rotates it."""

import logging
from pathlib import Path

import pytest

from mtp_daemon.errors import EnvironmentFailure
from mtp_daemon.services.own_log import LOG_FILE, log_handler


def test_a_log_of_its_own_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weeks of requests under launchd take a few files of a bounded size, and the newest line is in the first."""
    monkeypatch.setenv(LOG_FILE, str(tmp_path / "mtpd.log"))
    handler = log_handler(nbytes=1000)
    for number in range(200):
        handler.emit(logging.LogRecord("mtpd", logging.INFO, "", 0, "request=%d accepted", (number,), None))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["mtpd.log", "mtpd.log.1", "mtpd.log.2", "mtpd.log.3"]
    assert all(f.stat().st_size <= 1000 for f in files)
    assert files[0].read_text().endswith("request=199 accepted\n")


def test_elsewhere_it_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager's journal, or a terminal, has it."""
    monkeypatch.delenv(LOG_FILE, raising=False)
    assert type(log_handler()) is logging.StreamHandler


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FILE, str(tmp_path / "no such" / "mtpd.log"))
    with pytest.raises(EnvironmentFailure, match=r"mtpd\.log"):
        log_handler()
