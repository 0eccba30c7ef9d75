"""What is installed where: paths and the text of the unit and the property list."""

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

SYSTEMD_UNIT = "mtpd.service"
LAUNCHD_LABEL = "com.mtpd"
# systemd takes % for a specifier, $ for a variable and white space for the end of an argument.
_SYSTEMD_ESCAPES = str.maketrans({"%": "%%", "$": "$$", '"': '\\"', "\\": "\\\\"})


@dataclass(frozen=True)
class Places:
    """Where a user's service lives. `unit` is the file the service manager reads."""

    unit: Path
    config: Path
    logs: Path


def places(platform: str = sys.platform, home: Path | None = None) -> Places:
    """The files of this user's service on `platform` ("linux" or "darwin")."""
    home = home or Path.home()
    if platform == "darwin":
        return Places(
            unit=home / "Library" / "LaunchAgents" / f"{LAUNCHD_LABEL}.plist",
            config=home / "Library" / "Application Support" / "mtpd" / "config.toml",
            logs=home / "Library" / "Logs" / "mtpd",
        )
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return Places(
        unit=config / "systemd" / "user" / SYSTEMD_UNIT, config=config / "mtpd" / "config.toml", logs=state / "mtpd"
    )


def template(platform: str = sys.platform) -> str:
    """The unit's text with its @NAMES@; from the checkout, or from where the wheel put it."""
    name = f"{LAUNCHD_LABEL}.plist" if platform == "darwin" else SYSTEMD_UNIT
    checkout = Path(__file__).resolve().parents[3] / "systemd" / name
    installed = Path(sysconfig.get_path("data")) / "share" / "mtpd" / name
    return (checkout if checkout.exists() else installed).read_text(encoding="utf-8")


def render(mtpd: Path, where: Places, platform: str = sys.platform) -> str:
    """The unit for the command `mtpd`, with every path quoted as its format wants."""
    if platform == "darwin":
        values = {"@MTPD@": escape(str(mtpd)), "@CONFIG@": escape(str(where.config)), "@LOGS@": escape(str(where.logs))}
    else:
        values = {name: f'"{str(path).translate(_SYSTEMD_ESCAPES)}"'
                  for name, path in {"@MTPD@": mtpd, "@CONFIG@": where.config}.items()}  # fmt: skip
    text = template(platform)
    for name, value in values.items():
        text = text.replace(name, value)
    return text
