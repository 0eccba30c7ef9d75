"""The thread that watches the front: regions come over the lifeline, and its end ends this process at once."""

import os
import socket
import threading
from collections import deque

from mtp_protocol.lifeline import receive_region
from mtp_protocol.wake import Wake


class Lifeline:
    """Owns the inherited socket. `regions` fills with (generation, nbytes, fd)."""

    def __init__(self, fd: int, wake: Wake) -> None:
        self.regions: deque[tuple[int, int, int]] = deque()
        self._socket = socket.socket(fileno=fd)
        self._wake = wake
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def take(self) -> None:
        """The oldest region was mapped, or will not be: its descriptor is closed."""
        os.close(self.regions.popleft()[2])

    def _watch(self) -> None:
        while True:
            try:
                region = receive_region(self._socket)
            except OSError:
                region = None
            if region is None:
                # Nobody is left to talk to. Reader threads may be stuck in the kernel, so nothing is waited for; the
                # loader has nothing to lose: it only ever reads.
                os._exit(0)
            self.regions.append(region)
            self._wake()
