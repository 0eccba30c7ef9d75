"""One service on the demo model for all tests of the tool that want a real one."""

from collections.abc import Iterator

import pytest

from mtp_daemon.bench.serving import Service, serving

FLAGS = ("--pool", "25%", "--depth-controller", "constant", "--max-depth", "3")


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    with serving("demo", *FLAGS) as service:
        yield service
