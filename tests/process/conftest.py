"""The kill matrix's table, at the end of a run that killed somebody."""

import pytest

from support.kill_moments import MOMENTS, ROLES
from support.kill_table import KILLS, KillTable


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KILLS] = KillTable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash[KILLS].render(ROLES, MOMENTS)
    if table and config.getoption("--full"):
        terminalreporter.section("kills")
        terminalreporter.write_line("\n".join(table))
