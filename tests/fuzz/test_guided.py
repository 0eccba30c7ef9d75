"""What reads strangers' bytes, fuzzed for a moment by a fuzzer that watches branches; longer by its command."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fuzz.targets import targets

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 2

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed (it is made for Linux on x86-64)"
)


def fuzz(name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "support.fuzz", name, "--seconds", str(SECONDS), "--corpus", "corpus"]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", sorted(targets()))
def test_every_input_is_taken_or_refused(name: str, tmp_path: Path) -> None:
    done = fuzz(name, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    runs = int(done.stderr.split("stat::number_of_executed_units:")[1].split()[0])
    assert runs > 100, done.stderr[-2000:]


def test_the_fuzzer_finds_what_chance_does_not(tmp_path: Path) -> None:
    """Else all of the above would pass with branches unwatched."""
    done = fuzz("planted", tmp_path)
    assert done.returncode != 0
    assert "the planted fault" in done.stdout + done.stderr
