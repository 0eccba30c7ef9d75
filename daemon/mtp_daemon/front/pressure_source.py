"""What the system says about memory: pressure stall information and control groups on Linux, a sysctl on macOS."""

import contextlib
import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

from mtp_daemon.front.memory import cgroup_directories
from mtp_daemon.front.pressure import Level

Source = Callable[[], Level]

_PSI = Path("/proc/pressure/memory")
_AVERAGE = re.compile(r"^(some|full) avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
# Percent of the last ten seconds in which some task, or all of them, waited for memory.
_SOME_PERCENT, _FULL_PERCENT = 10.0, 5.0
# Of a control group's limit: memory that cannot simply be dropped.
_NEAR, _VERY_NEAR = 0.90, 0.96


def pressure_source(setting: str) -> Source | None:
    """For the `pressure` setting: "off", "auto", or the path of a PSI file. None: nothing to look at."""
    if setting == "off":
        return None
    if setting != "auto":
        return lambda: psi_level(Path(setting))
    if sys.platform == "darwin":
        return _macos_level
    return lambda: max(psi_level(_PSI), *(_group_level(d) for d in cgroup_directories()), Level.NONE)


def psi_level(path: Path) -> Level:
    """NONE too where there is no such file, as in kernels without PSI."""
    try:
        averages = {kind: float(value) for kind, value in _AVERAGE.findall(path.read_text())}
    except (OSError, UnicodeDecodeError):
        return Level.NONE
    if averages.get("full", 0.0) >= _FULL_PERCENT:
        return Level.CRITICAL
    return Level.SOME if averages.get("some", 0.0) >= _SOME_PERCENT else Level.NONE


def _group_level(directory: Path) -> Level:
    """How near a control group is to its `memory.high` or `memory.max`, whichever is less, and its own PSI."""
    level = psi_level(directory / "memory.pressure")
    with contextlib.suppress(OSError, ValueError):
        bounds = [(directory / name).read_text().strip() for name in ("memory.high", "memory.max")]
        limit = min((int(b) for b in bounds if b != "max"), default=0)
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        used = int((directory / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
        if limit:
            near = Level.CRITICAL if used > _VERY_NEAR * limit else Level.SOME if used > _NEAR * limit else Level.NONE
            level = max(level, near)
    return level


def _macos_level() -> Level:
    """`kern.memorystatus_vm_pressure_level`: 1 normal, 2 warning, 4 critical."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    name = b"kern.memorystatus_vm_pressure_level"
    if ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
        return Level.NONE
    return {2: Level.SOME, 4: Level.CRITICAL}.get(value.value, Level.NONE)
