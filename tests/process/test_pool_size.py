"""The pool's size while answers go on: memory is really given back, no token changes, new loaders are told."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtp_client.client import Client
from mtp_protocol.client_messages import Tokens
from support.checkpoints import Head, make_checkpoint
from support.front_process import FrontProcess
from support.served_model import ServedModel, greedy
from support.waiting import until

PROMPT = tuple(range(3, 60, 2))
N = 48


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "qwen3_next", head=Head())


@pytest.fixture(scope="module")
def psi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("psi") / "memory.pressure"
    file.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    return file


@pytest.fixture(scope="module")
def front(model: Path, psi: Path) -> Iterator[FrontProcess]:
    with ServedModel(model, pool="100%", delay_ms="1", pressure=str(psi)).wait_ready() as front:
        yield front


def region_bytes(front: FrontProcess) -> int:
    """Memory that the region takes, as the kernel counts it: pages that were punched out are not in it."""
    for fd in Path(f"/proc/{front.process.pid}/fd").iterdir():
        try:
            if "memfd:mtpd-pool" in os.readlink(fd):
                return fd.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    raise AssertionError("the front holds no region")


def slots(front: FrontProcess) -> int:
    """As the loader says."""
    return int(front.status()["experts"]["slots"])


def answered(client: Client, resizer: Client | None = None, sizes: tuple[str, ...] = ()) -> list[int]:
    """The answer, with a resize at every eighth token."""
    ids: list[int] = []
    left = list(sizes)
    for event in client.generate(prompt_ids=PROMPT, max_tokens=N):
        if isinstance(event, Tokens):
            ids += event.ids
            if left and resizer is not None and len(ids) >= 8 * (len(sizes) - len(left) + 1):
                resizer.resize(left.pop(0))
    assert not left
    return ids


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="holes are punched on Linux")
def test_resize_gives_memory_back(front: FrontProcess, model: Path) -> None:
    """Down and up in the middle of an answer: the same tokens, and the kernel has the pages of the tail back."""
    with front.client() as client, front.client() as other:
        assert answered(client) == greedy(model, PROMPT, N)
        full, full_slots = region_bytes(front), slots(front)
        assert answered(client, other, ("30%", "60%", "12%")) == greedy(model, PROMPT, N)
        until("told", lambda: slots(front) < 0.15 * full_slots)
        small = region_bytes(front)
        assert small < 0.3 * full, f"{small} of {full} bytes are still held with 12 % of the slots"
        assert answered(client, other, ("50%", "100%")) == greedy(model, PROMPT, N)
        until("told", lambda: slots(front) == full_slots)
        assert answered(client) == greedy(model, PROMPT, N)
        assert region_bytes(front) > 2 * small


def test_resize_auto_takes_what_is_free_up_to_the_region(front: FrontProcess) -> None:
    """What the pool holds already is no memory that is missing, and auto never asks for more than there is room for."""
    with front.client() as client:
        whole = sum(client.resize("100%")["slots"])
        assert sum(client.resize("40%")["slots"]) < whole
        assert sum(client.resize("auto")["slots"]) == whole


def test_pressure_shrinks_and_a_new_loader_is_told(front: FrontProcess, model: Path, psi: Path) -> None:
    """The machine is short of memory: the pool gives way by itself, and a loader that starts then gets no more.

    Without telling it, a restarted loader fills the whole region again in the middle of the shortage.
    """
    whole = slots(front)
    psi.write_text("some avg10=90.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=50.00 avg60=0 avg300=0 total=9\n")
    until("it shrinks", lambda: slots(front) < 0.8 * whole)
    # No more steps while we look: a level that asks for nothing, and a minute before it grows again.
    psi.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n")
    status = front.status()
    held = sum(status["pressure"]["slots"])
    assert held < whole
    with front.client() as client:
        assert answered(client) == greedy(model, PROMPT, N)
        asked = until("counted", lambda: front.status()["experts"]["requests"])
        os.kill(front.child_pid("loader"), 9)
        # Its first beat, by a count that begins anew: until then status shows what the dead one said.
        until("a new loader", lambda: front.status()["experts"].get("requests", asked) < asked)
        until("it is told", lambda: front.status()["experts"].get("slots") == held)
        assert answered(client) == greedy(model, PROMPT, N)
