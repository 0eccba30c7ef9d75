"""What reads bytes of strangers, each as a function that a fuzzer may give any bytes: it returns, or refuses them.

Refusing is raising the errors that the function documents; anything else is a fault that the fuzzer reports.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from mtp_daemon.config import read_file
from mtp_daemon.errors import UserError
from mtp_loader.errors import LoaderError
from mtp_loader.policy.lru import Lru
from mtp_loader.replay.read import read_trace
from mtp_loader.replay.recording import entry_of
from mtp_loader.replay.run import replay
from mtp_loader.store.files import read_checkpoint
from mtp_loader.store.index import read_index
from mtp_loader.store.resolve import resolve_model
from mtp_loader.store.safetensors import read_header
from mtp_protocol import client_messages, engine_messages, expert_messages, loader_messages
from mtp_protocol.codec import Codec
from mtp_protocol.errors import ProtocolError

DIRECTIONS: tuple[Codec[Any], ...] = (
    client_messages.from_client,
    client_messages.to_client,
    engine_messages.to_engine,
    engine_messages.from_engine,
    expert_messages.to_loader,
    expert_messages.to_engine,
    loader_messages.to_loader,
    loader_messages.from_loader,
)
_JSON_WORDS = ("text_config", "weight_map", "num_hidden_layers", "num_experts", "null", "1e999", "-1", "\\u0000")


@dataclass(frozen=True)
class Target:
    """`seeds` are sound inputs to start from; `words` what a mutation may put in, as it seldom guesses them."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def wire(data: bytes) -> None:
    """Every direction's decoder; what one takes encodes again."""
    for direction in DIRECTIONS:
        with suppress(ProtocolError):
            message = direction.decode(data)
            direction.encode(message)


def a_file(name: str, read: Callable[[Path], object], *refusals: type[Exception]) -> Callable[[bytes], None]:
    """A target that finds its input in a file of this name, alone in a directory."""
    directory = Path(tempfile.mkdtemp(prefix="mtpd-t-fuzz-"))
    path = directory / name

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(*refusals):
            read(path)

    return run


def _replayed(path: Path) -> None:
    """A recording that is taken can be replayed, and its books add up."""
    trace = read_trace(path)
    for tally in replay(trace, lambda _: Lru(), trace.slots(0.5)).values():
        assert tally.hits + tally.misses == tally.requests


def _wire_seeds() -> tuple[bytes, ...]:
    c, e = client_messages, expert_messages
    return (
        c.from_client.encode(c.Submit(2, prompt_ids=(1, 2), max_tokens=1, stop=("a",), keep_s=0.1)),
        c.from_client.encode(c.Pin(6, ((0, 1),))),
        c.from_client.encode(c.Calibrate(8, 12.5, (0.25,))),
        c.to_client.encode(c.Tokens(b"r" * 16, 0, (1, 2), "ab")),
        e.to_loader.encode(e.Hint(3, ((1, ((2, 0.5),)),))),
        e.to_loader.encode(e.Used(3, 1, (7,), ((0, ((1, 2),), ((0.5, 0.5),)),), 1, 1, 1)),
        e.to_engine.encode(e.Welcome((e.Resident(0, 1, 2),), 1)),
    )


def _sound_header() -> bytes:
    head = b'{"__metadata__":{"format":"mlx"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return len(head).to_bytes(8, "little") + head + bytes(8)


def _sound_recording() -> bytes:
    header = {"format": "mtp-routing", "version": 1, "model": "m", "fingerprint": "f", "layers": [[0, 0, 8, 2, 5]]}
    used = expert_messages.Used(0, 1, (7,), ((0, ((1, 2),), ((0.5, 0.5),)),), 1, 1, 1)
    return bytes(msgpack.packb(header)) + entry_of(used)


def targets() -> Mapping[str, Target]:
    """By name. The seeds come from the demo model that lies in the package."""
    demo = resolve_model("demo")
    csv = b"# route_trace v1\n# model=m n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=5\n0,0,0,0,0,3,0.6,0,5\n"
    return {
        "wire": Target(wire, _wire_seeds()),
        "safetensors": Target(
            a_file("model.safetensors", read_header, LoaderError), (_sound_header(),), ("BF16", "F4")
        ),
        "index": Target(
            a_file("index.json", lambda p: read_index(p.parent), LoaderError),
            ((demo / "index.json").read_bytes(),),
            ("head_missing", "null", "-1", "4096", "9223372036854775807"),
        ),
        "model-config": Target(
            a_file("config.json", lambda p: read_checkpoint(p.parent), LoaderError),
            ((demo / "config.json").read_bytes(),),
            _JSON_WORDS,
        ),
        "settings": Target(
            a_file("mtpd.toml", read_file, UserError),
            (b'pool = "25%"\ncontext = 4096\nprefetch = false\ntau = 0.5\nlisten = "tcp://127.0.0.1:1"\n',),
            ("metrics", "unix:", "nan", "inf", "[model]", "max_queue", "disk-gbps"),
        ),
        "recording": Target(
            a_file("r", _replayed, LoaderError), (_sound_recording(), csv), ("used", "hint", "n_expert")
        ),
    }
