"""systemd hears READY, the watchdog and nothing else; without systemd nothing happens."""

import os
import socket
from pathlib import Path

from mtp_daemon.services.notify import ServiceManager


def test_systemd_hears_what_it_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inlet:
        inlet.bind(str(tmp_path / "notify"))
        inlet.settimeout(5)
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"})
        assert manager.watchdog_s == 60.0
        manager.ready("serving")
        manager.alive()
        manager.loading(2.5)
        assert [inlet.recv(200) for _ in range(3)] == [
            b"READY=1\nSTATUS=serving",
            b"WATCHDOG=1",
            b"EXTEND_TIMEOUT_USEC=2500000",
        ]


def test_a_watchdog_meant_for_another_process_is_not_ours() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)}
    assert ServiceManager(environ).watchdog_s is None


def test_without_a_listener_the_service_goes_on(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("serving")
    ServiceManager({}).ready("serving")
