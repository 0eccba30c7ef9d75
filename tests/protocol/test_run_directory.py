"""Both ends derive the same socket path, and it always fits a Unix socket."""

import os
from pathlib import Path

import pytest

from mtp_protocol.run_directory import (
    SOCKET_PATH_LIMIT,
    client_address,
    default_run_directory,
    socket_directory,
)


@pytest.mark.parametrize("length", [10, 60, 75, 76, 77, 78, 79, 80, 81, 82, 107, 150, 300])
def test_every_socket_fits_whatever_the_run_directory(length: int) -> None:
    run = Path("/" + "d" * (length - 1))
    longest = f"{socket_directory(run)}/loader-{2**64 - 1}.sock"
    assert len(os.fsencode(longest)) <= SOCKET_PATH_LIMIT
    assert client_address(run).startswith(f"ipc://{socket_directory(run)}/")


def test_a_name_that_is_not_utf8_has_sockets_elsewhere() -> None:
    """ZeroMQ's binding takes no such address: the service could not even start there."""
    odd = Path(os.fsdecode(b"/run/od\xff"))
    client_address(odd).encode()
    assert socket_directory(odd) != socket_directory(Path(os.fsdecode(b"/run/od\xfe")))


def test_two_long_directories_do_not_share_sockets() -> None:
    assert socket_directory(Path("/" + "a" * 150)) != socket_directory(Path("/" + "b" * 150))


def test_a_relative_path_means_the_same_to_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert socket_directory(Path("run")) == socket_directory(tmp_path / "run")


def test_the_environment_names_the_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPD_RUN_DIR", "/somewhere")
    assert default_run_directory() == Path("/somewhere")
