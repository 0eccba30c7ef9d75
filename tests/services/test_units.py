"""The unit and the property list are what the service managers accept, with any path in them."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from mtp_daemon.services.units import Places, places, render

ODD = Path('/opt/my "tools" 100%/$HOME & co/mtpd')


def _places(tmp_path: Path) -> Places:
    return Places(unit=tmp_path / "u" / "mtpd.service", config=tmp_path / "a b" / "c.toml", logs=tmp_path / "logs")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds no fault in it: a misspelt key is only a warning to systemd itself."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    command = tmp_path / "bin dir" / "mtpd"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "mtpd.service"
    unit.write_text(render(command, _places(tmp_path), "linux"))
    done = subprocess.run(
        [analyze, "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "mtpd.service" not in done.stderr, done.stderr


def test_systemd_gets_odd_paths_as_one_argument(tmp_path: Path) -> None:
    line = next(x for x in render(ODD, _places(tmp_path), "linux").splitlines() if x.startswith("ExecStart="))
    assert line.startswith('ExecStart="/opt/my \\"tools\\" 100%%/$$HOME & co/mtpd" serve --config "')


@pytest.mark.parametrize("key", ["Type=notify", "WatchdogSec=", "RestartPreventExitStatus=2 3", "NoNewPrivileges=yes"])
def test_the_unit_keeps_its_promises(tmp_path: Path, key: str) -> None:
    """No restart on a configuration error, a watchdog, hardening: each is one line somebody could lose."""
    assert key in render(ODD, _places(tmp_path), "linux")


def test_the_property_list_parses_and_names_our_paths(tmp_path: Path) -> None:
    agent = plistlib.loads(render(ODD, _places(tmp_path), "darwin").encode())
    assert agent["ProgramArguments"] == [str(ODD), "serve", "--config", str(tmp_path / "a b" / "c.toml")]
    assert agent["StandardErrorPath"] == str(tmp_path / "logs" / "mtpd.out")
    assert agent["EnvironmentVariables"]["MTPD_LOG_FILE"] == str(tmp_path / "logs" / "mtpd.log")
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ThrottleInterval"] >= 10, "launchd must not restart in a fast loop"
    assert agent["EnvironmentVariables"]["MTPD_SERVICE_MANAGER"] == "launchd"
    known = {
        "Label", "ProgramArguments", "EnvironmentVariables", "RunAtLoad", "KeepAlive", "ThrottleInterval",
        "ExitTimeOut", "ProcessType", "Umask", "SoftResourceLimits", "StandardOutPath", "StandardErrorPath",
    }  # fmt: skip
    assert set(agent) == known, "launchd ignores a misspelt key without a word"


def test_each_platform_has_its_own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    home = Path("/home/u")
    assert places("linux", home).unit == home / ".config/systemd/user/mtpd.service"
    assert places("darwin", home).unit == home / "Library/LaunchAgents/com.mtpd.plist"
