"""What processes hold in memory and use of the processor, looked at from outside while they work."""

import contextlib
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

PERIOD_S = 0.1


def resident_bytes(pid: int) -> int:
    """Of a process: its proportional share on Linux, where a page that two processes map counts half in each; what is
    its own alone (USS) on macOS, which leaves the pool out. 0 for a process that is gone.
    """
    with contextlib.suppress(psutil.Error):
        full = psutil.Process(pid).memory_full_info()
        return int(full.pss if sys.platform == "linux" else full.uss)
    return 0


def cpu_seconds(pid: int) -> float:
    """CPU time used so far by the threads that live now; to the nanosecond where Linux counts so, else to a tick."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
    except (OSError, ValueError, IndexError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


class Footprint:
    """Use as a context: the largest that each process, and their sum, was while it was open.

    Looking costs the machine some milliseconds each time: not for runs whose speed counts.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="footprint", daemon=True)
        self.peak = dict.fromkeys(self._pids, 0)
        self.peak_sum = 0

    def __enter__(self) -> "Footprint":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._end.wait(PERIOD_S):
            self._look()

    def _look(self) -> None:
        now = {name: resident_bytes(pid) for name, pid in self._pids.items()}
        self.peak = {name: max(self.peak[name], nbytes) for name, nbytes in now.items()}
        self.peak_sum = max(self.peak_sum, sum(now.values()))
