"""Where TCP may be served: never everywhere by accident, never without keys that are the user's alone."""

import os
from pathlib import Path

import pytest

from mtp_daemon.cli import main
from mtp_daemon.config import load_settings
from mtp_daemon.errors import UserError
from mtp_daemon.front.listen import listener_of


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert main(["keygen", "--key-dir", str(tmp_path / "keys"), "--client", "one"]) == 0
    return tmp_path / "keys"


def listen(address: str, keys: Path, **more: bool) -> str:
    listener = listener_of(load_settings(None, {"listen": address, "key_dir": str(keys), **more}))
    assert listener is not None and len(listener.allowed()) == 1
    return listener.address


def test_off_by_default() -> None:
    assert listener_of(load_settings(None, {})) is None


@pytest.mark.parametrize(
    "everywhere", ["tcp://0.0.0.0:5599", "tcp://*:5599", "tcp://[::]:5599", "tcp://[0:0::0]:5599",
                   "tcp://[::ffff:0.0.0.0]:5599"],
)  # fmt: skip
def test_everywhere_must_be_meant(everywhere: str, keys: Path) -> None:
    """Every way to write "all networks" is refused, unless listen_anywhere says it is meant."""
    with pytest.raises(UserError, match="listen_anywhere"):
        listen(everywhere, keys)
    assert listen(everywhere, keys, listen_anywhere=True).startswith("tcp://")


@pytest.mark.parametrize("bad", ["127.0.0.1:5599", "tcp://0:5599", "tcp://localhost:5599", "tcp://127.0.0.1", "ipc:///x",
                                 "tcp://127.0.0.1:70000", "tcp://eth0:5599", "tcp://00.0.0.0:5599"])  # fmt: skip
def test_only_numeric_addresses(bad: str, keys: Path) -> None:
    """What a name or an odd notation stands for is not for us to guess."""
    with pytest.raises(UserError, match="listen"):
        listen(bad, keys)


def test_one_address(keys: Path) -> None:
    assert listen("tcp://127.0.0.1:5599", keys) == "tcp://127.0.0.1:5599"
    assert listen("tcp://[::1]:5599", keys) == "tcp://[::1]:5599"


def test_keys_must_be_private(keys: Path, tmp_path: Path) -> None:
    """No key, a secret that others may read, an allow list that others may write: no TCP."""
    with pytest.raises(UserError, match="mtpd keygen"):
        listen("tcp://127.0.0.1:5599", tmp_path / "none")
    for path, mode in ((keys / "server.key_secret", 0o644), (keys / "clients", 0o770), (keys, 0o755)):
        before = path.stat().st_mode & 0o777
        os.chmod(path, mode)
        with pytest.raises(UserError, match="chmod"):
            listen("tcp://127.0.0.1:5599", keys)
        os.chmod(path, before)
