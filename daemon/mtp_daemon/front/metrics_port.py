"""Answers `GET /metrics` on a Unix socket or a loopback port, in a thread of its own.

The thread and the front's loop share one reference, to an immutable Snapshot that the loop replaces. A scraper that
dawdles or shouts costs this thread seconds at most and the loop nothing.
"""

import contextlib
import ipaddress
import logging
import os
import re
import socket
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_daemon.front.metrics import CONTENT_TYPE, Snapshot, render

log = logging.getLogger("mtpd")

_MAX_REQUEST_BYTES = 8 << 10
_REQUEST_S = 2.0
_DRAIN_BYTES = 64 << 10
# How often the thread looks whether it is to end.
_ACCEPT_S = 0.25
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([0-9.]+)):(\d{1,5})")


@dataclass(frozen=True)
class Place:
    """Either a path or a loopback address."""

    path: str | None
    host: str = ""
    port: int = 0


def parse_place(text: str) -> Place:
    """`unix:PATH`, `127.0.0.1:PORT` or `[::1]:PORT`; raises UserError for anything else, other networks above all."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Place(os.path.abspath(text.removeprefix("unix:")))
    match = _ADDRESS.fullmatch(text)
    try:
        ip = ipaddress.ip_address(match[1] or match[2]) if match else None
    except ValueError:
        ip = None
    if match is None or ip is None or not ip.is_loopback or int(match[3]) > 65535:
        raise UserError(f"metrics must be unix:PATH or a loopback address like 127.0.0.1:9464, not {text!r}")
    return Place(None, str(ip), int(match[3]))


def place_fault(text: str) -> str | None:
    """What is wrong with the setting, None when nothing is."""
    try:
        parse_place(text)
    except UserError as error:
        return str(error)
    return None


class MetricsPort:
    """Listens from its creation to `close`. `snapshot` is the loop's to set, the thread only reads it."""

    def __init__(self, text: str) -> None:
        """Raises UserError, or EnvironmentFailure when the place is taken."""
        self.snapshot: Snapshot | None = None
        self._place = parse_place(text)
        try:
            self._socket = _listen(self._place)
        except OSError as error:
            raise EnvironmentFailure(f"cannot serve metrics at {text}: {error.strerror or error}") from error
        self._socket.settimeout(_ACCEPT_S)
        name = self._socket.getsockname()
        self.at = f"unix:{name}" if isinstance(name, str) else f"{name[0]}:{name[1]}"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(_ACCEPT_S + _REQUEST_S + 1.0)
        self._socket.close()
        if self._place.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._place.path)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _peer = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                log.warning("metrics: %s", error)
                self._closing.wait(_ACCEPT_S)  # out of descriptors, say: not a reason to spin
                continue
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _REQUEST_S
        head = _read_head(connection, deadline)
        status, body = self._reply(head)
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.sendall(
            f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode() + (b"" if head.startswith(b"HEAD ") else body)
        )  # fmt: skip
        if status.startswith("400"):
            # Closing with bytes unread resets the connection, and the reply with it.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_DRAIN_BYTES)

    def _reply(self, head: bytes) -> tuple[str, bytes]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if not head.endswith(b"\r\n\r\n") or len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", b"a request is at most 8 KiB, and made within two seconds\n"
        if words[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", b"GET only\n"
        if words[1].split(b"?")[0] != b"/metrics":
            return "404 Not Found", b"try /metrics\n"
        if self.snapshot is None:
            return "503 Service Unavailable", b"not ready yet\n"
        return "200 OK", render(self.snapshot).encode()


def _read_head(connection: socket.socket, deadline: float) -> bytes:
    """Up to the empty line; what there is when it does not come in time or is too long."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_REQUEST_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return head
        connection.settimeout(left_s)
        try:
            data = connection.recv(min(2048, _MAX_REQUEST_BYTES - len(head)))
        except TimeoutError:
            return head
        if not data:
            return head
        head += data
    return head[: head.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in head else head


def _listen(place: Place) -> socket.socket:
    if place.path is None:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address: str | tuple[str, int] = (place.host, place.port)
    else:
        _remove_stale(Path(place.path))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = place.path
    try:
        listener.bind(address)
        if place.path is not None:
            os.chmod(place.path, 0o600)
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """The socket of a service that was killed; one that is listened at, or anything else, is left (and is an error)."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
