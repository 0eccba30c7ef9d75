"""systemd hears READY, the watchdog and nothing else; without systemd nothing happens."""

import socket
from pathlib import Path

from mtp_daemon.services.notify import SystemdNotice


def test_systemd_hears_what_it_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inlet:
        inlet.bind(str(tmp_path / "notify"))
        inlet.settimeout(5)
        manager = SystemdNotice({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        manager.ready("serving")
        manager.alive()
        manager.loading(2.5)
        assert [inlet.recv(200) for _ in range(3)] == [
            b"READY=1\nSTATUS=serving",
            b"WATCHDOG=1",
            b"EXTEND_TIMEOUT_USEC=2500000",
        ]


def test_without_a_listener_the_service_goes_on(tmp_path: Path) -> None:
    SystemdNotice({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("serving")
    SystemdNotice({}).ready("serving")
