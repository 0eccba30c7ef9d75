"""Where a user's services keep what they learned of their models: statistics of routing, pins, the head's rows."""

import os
import sys
from pathlib import Path

OFF = "off"


def state_directory(setting: str | None) -> Path | None:
    """The directory that the setting means: "off" none, None the user's own, anything else itself. Makes nothing.

    Models share it: each file's name ends with the fingerprint of the checkpoint that it is of.
    """
    if setting == OFF:
        return None
    return default_state_directory() if setting is None else Path(os.path.abspath(setting))


def default_state_directory(platform: str = sys.platform, home: Path | None = None) -> Path:
    """`$XDG_STATE_HOME/mtpd` where that is set, else the platform's own place in the user's home."""
    if xdg := os.environ.get("XDG_STATE_HOME"):
        return Path(xdg) / "mtpd"
    home = home or Path.home()
    if platform == "darwin":
        return home / "Library" / "Application Support" / "mtpd" / "state"
    return home / ".local" / "state" / "mtpd"


def unusable(directory: Path) -> str | None:
    """Why nothing can be kept in `directory`, which need not be there yet; None when something can."""
    place = next(p for p in (directory, *directory.parents) if os.path.lexists(p))
    if not place.is_dir():
        return f"{place} is not a directory"
    return None if os.access(place, os.R_OK | os.W_OK | os.X_OK) else f"{place} may not be written to"
