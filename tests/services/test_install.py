"""Installing twice is installing once; uninstalling leaves what is the user's; every step is shown."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_daemon.services import install
from mtp_daemon.services.units import Places


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return Places(unit=tmp_path / "units" / "u", config=tmp_path / "config" / "c.toml", logs=tmp_path / "logs")


class Recorder:
    """Stands in for the service manager's commands, which a test machine may not have."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(" ".join(command))
        return self.code


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_second_install_changes_no_file(platform: str, where: Places, capsys: pytest.CaptureFixture[str]) -> None:
    run = Recorder()
    mtpd = Path("/opt/mtpd")
    assert install.install('model = "m"\n', platform=platform, run=run, where=where, mtpd=mtpd) == 0
    before = {p: (p.read_text(), p.stat().st_mtime_ns) for p in (where.unit, where.config)}
    assert install.install('model = "other"\n', platform=platform, run=run, where=where, mtpd=mtpd) == 0
    assert {p: (p.read_text(), p.stat().st_mtime_ns) for p in (where.unit, where.config)} == before
    assert where.config.stat().st_mode & 0o777 == 0o600
    assert f"keeping {where.config}" in capsys.readouterr().out
    assert any("enable --now" in c or "bootstrap" in c for c in run.commands)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_uninstall_keeps_the_configuration_and_may_be_repeated(platform: str, where: Places) -> None:
    run = Recorder()
    install.install("x = 1\n", platform=platform, run=run, where=where, mtpd=Path("/opt/mtpd"))
    assert install.uninstall(platform=platform, run=run, where=where) == 0
    assert not where.unit.exists() and where.config.exists()
    run.commands.clear()
    assert install.uninstall(platform=platform, run=run, where=where) == 0
    assert run.commands == []


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_log_of_no_service_is_not_an_empty_log(platform: str, where: Places) -> None:
    """Whoever never installed one is told how, and where a service started by hand writes."""
    with pytest.raises(UserError, match="install-service"):
        install.log_command(False, platform, where)
    install.install("x = 1\n", platform=platform, run=Recorder(), where=where, mtpd=Path("/opt/mtpd"))
    assert install.log_command(True, platform, where)[-1] in ("-f", str(where.logs / "mtpd.log"))


def test_a_service_manager_that_fails_is_reported(where: Places, capsys: pytest.CaptureFixture[str]) -> None:
    code = install.install("x = 1\n", platform="linux", run=Recorder(1), where=where, mtpd=Path("/opt/mtpd"))
    assert code == 1
    assert "not done: systemctl --user daemon-reload" in capsys.readouterr().err


def test_a_missing_command_is_an_exit_code_not_a_traceback() -> None:
    assert install.run_command(["no-such-command-here"]) == 127


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    install.write_file(path, "old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(EnvironmentFailure, match="disk full"):
        install.write_file(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
