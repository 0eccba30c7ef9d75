"""SIGTERM and SIGINT as something a poller can wait for."""

import os
import signal
from types import FrameType
from typing import Any


class StopSignals:
    """Counts the wishes to stop; `fd` becomes readable with each. Only in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def drain(self) -> None:
        try:
            while os.read(self.fd, 64):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write_end)
