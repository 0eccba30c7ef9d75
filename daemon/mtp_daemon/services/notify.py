"""systemd's notification protocol (sd_notify(3)): datagrams to the socket that `$NOTIFY_SOCKET` names.

A dozen lines of our own instead of a dependency: the protocol is documented as stable and meant to be written so.
"""

import os
import socket


class SystemdNotice:
    """Tells systemd how the service does; without one every call does nothing."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        environ = dict(os.environ) if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")

    def ready(self, status: str) -> None:
        """Clients are served from now on."""
        self._send(f"READY=1\nSTATUS={status}")

    def loading(self, extend_s: float) -> None:
        """Still starting, and moving: give it `extend_s` more."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    def alive(self) -> None:
        """Feed the watchdog. Only after real progress or true idleness: a fed watchdog that proves nothing is none."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A name that begins with @ lies in Linux's abstract name space.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as outlet:
            outlet.setblocking(False)
            try:
                outlet.sendto(text.encode(), address)
            except OSError:
                # A manager that does not listen must not stop the service it watches; it will notice the silence.
                return
