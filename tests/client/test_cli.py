"""`mtp-client` as a user runs it, against a real front with fake children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_children import answer, text_of
from support.front_process import DEADLINE_S, FrontProcess
from support.waiting import until

CLIENT = (sys.executable, "-m", "mtp_client.cli")


@pytest.fixture(scope="module")
def front() -> Iterator[FrontProcess]:
    with FrontProcess({"engine": [{"token_every_s": 0.002}]}).wait_ready() as front:
        yield front


def run(*arguments: str, stdin: str | bytes = "") -> "subprocess.CompletedProcess[str]":
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    command = [*CLIENT, *arguments]
    done = subprocess.run(command, input=data, capture_output=True, timeout=DEADLINE_S)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def text(prompt: str, count: int) -> str:
    return "".join(text_of(i) for i in answer(prompt, count))


def test_text(front: FrontProcess) -> None:
    """The answer and nothing else on standard output, ended by a newline; statistics on standard error."""
    done = run("hello", "-n", "5", "--stats", "--run-dir", str(front.run_dir))
    assert (done.returncode, done.stdout) == (0, text("hello", 5) + "\n")
    assert "3 in, 5 out (length)" in done.stderr and "1.00 tokens/s" in done.stderr


def test_prompt_from_standard_input(front: FrontProcess) -> None:
    """`-` reads all of standard input as the prompt."""
    done = run("-", "-n", "3", "--run-dir", str(front.run_dir), stdin="two\nlines é")
    assert done.stdout == text("two\nlines é", 3) + "\n"


@pytest.mark.parametrize(("flags", "asked"), [((), "hello\n"), (("--raw",), "hello\n\n")])
def test_one_newline_at_the_end_of_standard_input_is_the_shells(
    front: FrontProcess, flags: tuple[str, ...], asked: str
) -> None:
    """`echo` adds one that nobody means as part of the question; --raw gives the text as it is."""
    done = run("-", "-n", "3", *flags, "--run-dir", str(front.run_dir), stdin="hello\n\n")
    assert done.stdout == text(asked, 3) + "\n"


def test_a_prompt_that_fits_no_message_is_refused(front: FrontProcess) -> None:
    """Told with the limit, not with a traceback."""
    done = run("-", "--run-dir", str(front.run_dir), stdin="x" * (17 << 20))
    assert done.returncode == 2 and str(16 << 20) in done.stderr and "Traceback" not in done.stderr


def test_json_lines(front: FrontProcess) -> None:
    """One object a line; every token number once; usage and stats at the end."""
    done = run("hello", "-n", "5", "--json", "--run-dir", str(front.run_dir))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "accepted" and len(bytes.fromhex(events[0]["request"])) == 16
    tokens = [e for e in events if e["event"] == "tokens"]
    assert [e["seq"] for e in tokens] == [sum(len(t["ids"]) for t in tokens[:i]) for i in range(len(tokens))]
    assert [i for e in tokens for i in e["ids"]] == answer("hello", 5)
    assert "".join(e["text"] for e in tokens) == text("hello", 5)
    assert events[-1]["event"] == "finished" and events[-1]["reason"] == "length"
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "cached_tokens": 0}
    assert events[-1]["stats"]["tok_per_s"] == 1.0


def test_json_failure(front: FrontProcess) -> None:
    """A failure is an event as well, and exit code 4 for the environment's fault."""
    done = run("FAIL@2", "--json", "--run-dir", str(front.run_dir))
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 4
    assert last == {"event": "failed", "kind": "environment", "text": "shard 3 at offset 4096 cannot be read"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hi", "--temperature", "-1"], "temperature: must be a number from 0 to 100"),
        (["hi", "--top-p", "0"], "top_p"),
        (["hi", "-n", "99999999"], "max_tokens 99999999"),
        (["hi", "--stop", ""], "stop"),
        ([], "prompt"),
    ],
)
def test_wrong_use(front: FrontProcess, arguments: list[str], said: str) -> None:
    """Exit code 2, the thing is named, no traceback."""
    done = run(*arguments, "--run-dir", str(front.run_dir))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_bytes_that_are_no_text(front: FrontProcess) -> None:
    """Standard input or an argument that is not UTF-8 is refused as such, not with a traceback."""
    done = run("-", "--run-dir", str(front.run_dir), stdin=b"\xff\xfe")
    assert done.returncode == 2 and "UTF-8" in done.stderr
    done = run(os.fsdecode(b"\xff\xfe"), "--run-dir", str(front.run_dir))
    assert done.returncode == 2 and "UTF-8" in done.stderr and "Traceback" not in done.stderr


def test_no_daemon(tmp_path: Path) -> None:
    """Without a daemon: what to do, exit code 5, in under two seconds of which Python's start is a part."""
    taken = []
    for _ in range(3):  # the quickest of three: a machine that does other things may keep Python itself waiting
        begun = time.monotonic()
        done = run("hi", "--run-dir", str(tmp_path))
        taken.append(time.monotonic() - begun)
        assert done.returncode == 5
        assert "mtpd serve" in done.stderr and "Traceback" not in done.stderr
    assert min(taken) < 2.0


def test_stale_socket_of_a_killed_daemon(tmp_path: Path) -> None:
    """A socket file that nobody listens on is no daemon."""
    code = "import socket,sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "client.sock")], check=True)
    assert (tmp_path / "client.sock").exists()
    done = run("hi", "--run-dir", str(tmp_path))
    assert done.returncode == 5 and "mtpd serve" in done.stderr


def endless_answer(front: FrontProcess) -> list[str]:
    """The command that asks for more tokens than any test waits for."""
    client = [sys.executable, "-m", "mtp_client.cli"]
    return [*client, "endless", "-n", "8000", "--json", "--run-dir", str(front.run_dir)]


def test_reader_that_leaves(front: FrontProcess) -> None:
    """`mtp-client … | head -1`: no traceback, exit code 141, the request is cancelled, the daemon lives."""
    before = front.status()["requests"]["cancelled"]
    command = endless_answer(front)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stderr is not None
        client.stdout.readline()
        client.stdout.close()
        assert client.stderr.read() == b""
    assert client.returncode == 141
    until("cancelled", lambda: front.status()["requests"]["cancelled"] == before + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_output_that_cannot_be_written(front: FrontProcess, flags: list[str]) -> None:
    """A full disk behind `>`: one line that says so, exit code 4."""
    command = [sys.executable, "-m", "mtp_client.cli", "hello", "-n", "5", *flags, "--run-dir", str(front.run_dir)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert done.returncode == 4
    assert done.stderr == "mtp-client: the answer cannot be written: No space left on device\n"


def test_ctrl_c(front: FrontProcess) -> None:
    """Ctrl-C cancels on the server and ends with 130; with --json the last line says so."""
    command = endless_answer(front)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stderr is not None
        while json.loads(client.stdout.readline())["event"] != "tokens":
            pass
        client.send_signal(signal.SIGINT)
        lines = client.stdout.read().splitlines()
        assert client.stderr.read() == ""
    assert client.returncode == 130
    last = json.loads(lines[-1])
    assert (last["event"], last["reason"]) == ("finished", "cancelled")
    assert front.status()["queue"]["running"] is None


def test_daemon_dies_mid_stream() -> None:
    """The daemon is killed while it answers: the client says so at once and ends with 3."""
    with FrontProcess({"engine": [{"hang_at": "token:3"}]}).wait_ready() as front:
        command = [*CLIENT, "hi", "--run-dir", str(front.run_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None and client.stderr is not None
            assert client.stdout.read(len(text("hi", 3))) == text("hi", 3)
            front.process.kill()
            killed = time.monotonic()
            errors = client.stderr.read()
        assert time.monotonic() - killed < 3.0
        assert client.returncode == 4
        assert "the mtpd service died" in errors and "Traceback" not in errors


def test_progress_is_shown_on_a_terminal_and_nowhere_else() -> None:
    """During a long prefill a person sees how far it is; what a script keeps of standard error are errors."""
    slow = {"engine": [{"token_every_s": 0.2, "prefill_steps": 6}]}
    with FrontProcess(slow).wait_ready() as front:
        command = [*CLIENT, "hi", "-n", "1", "--run-dir", str(front.run_dir)]
        ours, theirs = os.openpty()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as client:
            quiet = run("hi", "-n", "1", "--run-dir", str(front.run_dir))
            assert client.wait(DEADLINE_S) == 0
        shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
        os.close(theirs)
    assert "reading the prompt:" in shown and "of 6 tokens" in shown
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_imports_are_few() -> None:
    """The client starts quickly because it imports pyzmq, msgpack and the protocol, and nothing heavier."""
    code = "import sys, mtp_client.cli; print(*sorted(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"mlx", "mlx_lm", "numpy", "psutil", "asyncio", "mtp_loader", "mtp_daemon", "tornado", "transformers"}
    assert heavy & set(done.stdout.split()) == set()
