"""TCP: CURVE with an allow list, or nothing at all. Real keys, real sockets, a real front."""

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from mtp_client import Client, NotRunning, RequestRefused
from mtp_daemon.cli import main
from mtp_protocol import client_messages as c
from mtp_protocol.client_messages import Tokens
from support.fake_children import answer
from support.front_process import FrontProcess
from support.waiting import until


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("config") / "keys"
    assert main(["keygen", "--key-dir", str(directory), "--client", "laptop"]) == 0
    # Another service's keys altogether: what a stranger can make for itself.
    assert main(["keygen", "--key-dir", str(directory.parent / "strange"), "--client", "stranger"]) == 0
    return directory


@pytest.fixture(scope="module")
def front(keys: Path) -> Iterator[FrontProcess]:
    with FrontProcess(listen="tcp://127.0.0.1:0", key_dir=str(keys)).wait_ready() as front:
        yield front


@pytest.fixture(scope="module")
def address(front: FrontProcess) -> str:
    return str(front.status()["tcp"]["at"])


def connect(address: str, keys: Path, who: str = "laptop", server: Path | None = None) -> Client:
    return Client(server=address, server_key=server or keys / "server.key", key=keys / f"{who}.key_secret")


def test_right_key(address: str, keys: Path) -> None:
    """The same service over TCP as over ipc: an answer, whole."""
    with connect(address, keys) as client:
        ids = [i for e in client.generate("far", max_tokens=50) if isinstance(e, Tokens) for i in e.ids]
    assert ids == answer("far", 50)


def test_command_line(address: str, keys: Path) -> None:
    """`mtp-client --server … --server-key … --key …`, and what it says when a key is missing."""
    command = [sys.executable, "-m", "mtp_client.cli", "-n", "3", "--server", address, "far"]
    flags = ["--server-key", str(keys / "server.key"), "--key", str(keys / "laptop.key_secret")]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.strip() == "".join(f"<{i}>" for i in answer("far", 3))
    done = subprocess.run([*command, *flags[:2]], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "needs both keys" in done.stderr


def test_unknown_key_is_refused(front: FrontProcess, address: str, keys: Path) -> None:
    """A well-formed key that is not on the list: refused at once, by name, and counted."""
    before, began = front.status()["tcp"]["refused"], time.monotonic()
    strange = keys.parent / "strange"
    with pytest.raises(NotRunning, match="does not know our key"):
        connect(address, strange, "stranger", keys / "server.key")
    assert time.monotonic() - began < 4
    assert front.status()["tcp"]["refused"] > before


def test_wrong_server_key(address: str, keys: Path) -> None:
    """A service that is not the one we have the key of never gets a message of ours."""
    with pytest.raises(NotRunning, match=r"does not answer"):
        connect(address, keys, server=keys.parent / "strange" / "server.key")


def test_list_is_read_at_each_handshake(address: str, keys: Path) -> None:
    """Adding a public key lets its owner in, removing it shuts it out, with no restart."""
    strange = keys.parent / "strange"
    theirs = keys / "clients" / "stranger.key"
    theirs.write_bytes((strange / "clients" / "stranger.key").read_bytes())
    connect(address, strange, "stranger", keys / "server.key").close()
    theirs.unlink()
    with pytest.raises(NotRunning, match="does not know our key"):
        connect(address, strange, "stranger", keys / "server.key")


@pytest.mark.parametrize("plain", ["NULL", "PLAIN", "bytes"])
def test_never_plain(front: FrontProcess, address: str, plain: str) -> None:
    """Without CURVE nothing is served: neither ZeroMQ's other mechanisms nor raw bytes get an answer."""
    hello = c.from_client.encode(c.Hello(1, "plain"))
    if plain == "bytes":
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), 3) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + hello)
            raw.settimeout(8)
            heard = b""
            try:
                while data := raw.recv(4096):
                    heard += data
            except ConnectionResetError:
                pass
            # ZeroMQ's own greeting at most, which names the mechanism.
            assert b"Welcome" not in heard and len(heard) <= 64
    else:
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            if plain == "PLAIN":
                dealer.setsockopt(zmq.PLAIN_USERNAME, b"admin")
                dealer.setsockopt(zmq.PLAIN_PASSWORD, b"admin")
            dealer.connect(address)
            dealer.send(hello)
            assert not dealer.poll(1500)
            # The one is who asks.
            until("it is no client", lambda: front.status()["queue"]["clients"] == 1, 5.0)


def test_gone_client_is_noticed(front: FrontProcess, address: str, keys: Path) -> None:
    """Over TCP too: a client that leaves has its request cancelled."""
    before = front.status()["requests"]["cancelled"]
    client = connect(address, keys)
    answered = client.generate("endless", max_tokens=8000)
    next(e for e in answered if isinstance(e, Tokens))
    client.close()
    until("cancelled", lambda: front.status()["requests"]["cancelled"] == before + 1)


def test_nobody_there(keys: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(NotRunning, match="cannot reach"):
            connect(f"tcp://127.0.0.1:{free.getsockname()[1]}", keys)


def test_key_files(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directories 0700, files 0600; a key that exists is never overwritten; an open secret is not used."""
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (keys, *keys.rglob("*"))}
    assert all(mode == (0o700 if p.is_dir() else 0o600) for p, mode in modes.items())
    before = {p: p.read_bytes() for p in keys.rglob("*") if p.is_file()}
    assert main(["keygen", "--key-dir", str(keys), "--client", "laptop"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["keygen", "--key-dir", str(keys), "--client", "../../evil"]) == 2
    assert {p: p.read_bytes() for p in keys.rglob("*") if p.is_file()} == before
    mine = keys / "laptop.key_secret"
    os.chmod(mine, 0o640)
    try:
        with pytest.raises(RequestRefused, match="chmod 600"):
            connect("tcp://127.0.0.1:1", keys)
    finally:
        os.chmod(mine, 0o600)
