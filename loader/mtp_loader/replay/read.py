"""Recorded routing from either kind of file."""

from pathlib import Path

from mtp_loader.errors import BadRequest, DamagedCheckpoint
from mtp_loader.replay.csv_trace import read_csv
from mtp_loader.replay.recording import is_recording, read_recording
from mtp_loader.replay.trace import Trace


def read_trace(path: Path) -> Trace:
    """A compact recording or a CSV, told apart by what it begins with. Raises BadRequest, DamagedCheckpoint."""
    if not path.is_file():
        raise BadRequest(f"no recording at {path}")
    trace = read_recording(path) if is_recording(path) else read_csv(path)
    if fault := trace.fault():
        raise DamagedCheckpoint(path, fault)
    return trace
