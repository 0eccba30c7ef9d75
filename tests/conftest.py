"""Which tests run: `--full` runs the whole of every big matrix, otherwise a pairwise subset of it."""

import atexit
import os
import shutil
import signal
import tempfile

import hypothesis
import pytest

# On a machine that does other work an example may take any time; what must be quick is measured elsewhere.
hypothesis.settings.register_profile("any time", deadline=None)
hypothesis.settings.load_profile("any time")
# Tests of the service must not meet a service of the user's.
os.environ.pop("MTPD_RUN_DIR", None)
# Nor may they leave anything in the user's home.
if "mtpd-t-state-" not in os.environ.get("XDG_STATE_HOME", ""):  # a worker has it from the process that started it
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mtpd-t-state-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A run started in the background is told to ignore SIGINT, and so would every child that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the whole of every test matrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    skipped = pytest.mark.skip(reason="part of a big matrix: make test-full")
    for item in items:
        if "full" in item.keywords:
            item.add_marker(skipped)
