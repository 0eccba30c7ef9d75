"""Where the sockets of a run directory lie; both ends derive the path here and nowhere else."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

# sun_path holds 104 bytes on macOS and 108 on Linux, the final zero included.
SOCKET_PATH_LIMIT = 103 if sys.platform == "darwin" else 107
_LONGEST_NAME = len("/loader-18446744073709551615.sock")


def default_run_directory() -> Path:
    """`$MTPD_RUN_DIR`, else the user's runtime directory, else a private folder named after the user id."""
    if explicit := os.environ.get("MTPD_RUN_DIR"):
        return Path(explicit)
    if sys.platform != "darwin" and (runtime := os.environ.get("XDG_RUNTIME_DIR")):
        return Path(runtime) / "mtpd"
    return Path(tempfile.gettempdir()) / f"mtpd-{os.getuid()}"


def socket_directory(run_directory: Path) -> Path:
    """The directory that holds the sockets: the run directory, or a short one derived from a name that is too long, or
    that is not UTF-8 and so none that ZeroMQ's binding takes.

    Both must be private (mode 0700, owned by the user); who creates them checks that.
    """
    absolute = Path(os.path.abspath(run_directory))
    name = os.fsencode(absolute)
    if len(name) + _LONGEST_NAME <= SOCKET_PATH_LIMIT and _is_text(name):
        return absolute
    digest = hashlib.sha256(name).hexdigest()[:16]
    return Path(f"/tmp/mtpd-{os.getuid()}-{digest}")


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def client_address(run_directory: Path) -> str:
    """The ZeroMQ address clients connect to."""
    return f"ipc://{socket_directory(run_directory)}/client.sock"


def children_address(run_directory: Path) -> str:
    """The ZeroMQ address both children connect to."""
    return f"ipc://{socket_directory(run_directory)}/children.sock"


def lock_path(run_directory: Path) -> Path:
    """The file whose `flock` says who the daemon is; it holds the daemon's process id."""
    return run_directory / "mtpd.lock"
