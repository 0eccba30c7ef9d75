"""SIGTERM and SIGINT as something a poller can wait for."""

import signal
from types import FrameType
from typing import Any

from mtp_protocol.wake import Wake


class StopSignals:
    """Counts the wishes to stop; `fd` becomes readable with each. Only in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._wake = Wake()
        self.fd = self._wake.fileno()
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._wakeup_before = signal.set_wakeup_fd(self._wake.write_fd, warn_on_full_buffer=False)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def drain(self) -> None:
        self._wake.clear()

    def close(self) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._wake.close()
