"""The compact recording of routing: what `--record-routing` writes and `mtp-loader replay` reads.

A stream of MessagePack values: first the header (a map), then arrays, appended as they happen:
`["used", step, phase, tokens, [[layer, top_k, experts, weights], …]]` with experts as little-endian uint16 and weights
as float16, row by row of tokens; `["hint", step, [[layer, experts, weights], …]]`. A crash can cut the last value
short: what is whole before it counts.
"""

import os
import struct
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.replay.trace import Forward, HintLayers, LayerFacts, Trace, event_of
from mtp_protocol.expert_messages import Hint, Used
from mtp_protocol.geometry import Geometry

MAGIC = "mtp-routing"
VERSION = 1
_LARGEST = 65504.0  # that a float16 holds


class Recorder:
    """Appends to a file. Every entry is handed to the system whole: only a crash of the machine can tear one."""

    def __init__(self, path: Path, geometry: Geometry, model: str) -> None:
        """A new file, or one of the same model to go on with, its torn tail cut off first.

        Raises DamagedCheckpoint for another model's or another kind of file, OSError.
        """
        header = header_of(geometry, model)
        fresh = not path.exists() or not path.stat().st_size
        if not fresh:
            values, whole = _values(path)
            if next(iter(values), None) != msgpack.unpackb(header):
                raise DamagedCheckpoint(path, "is not a recording of this model: name a new file")
            os.truncate(path, whole)
        self._file: BinaryIO = path.open("ab", buffering=0)
        if fresh:
            self._file.write(header)

    def used(self, entry: bytes) -> None:
        """A forward's entry, as `entry_of` made it."""
        self._file.write(entry)

    def hint(self, message: Hint) -> None:
        layers = [[y, _experts([[e for e, _ in w]]), _weights([[p for _, p in w]])] for y, w in message.layers]
        self._file.write(msgpack.packb(["hint", message.step, layers]))

    def close(self) -> None:
        self._file.close()


def header_of(geometry: Geometry, model: str) -> bytes:
    """What a recording begins with."""
    size = {b.bank: b.source_bytes for b in geometry.banks}
    layers = [[y.layer, y.bank, y.experts, y.top_k, size[y.bank]] for y in geometry.layers]
    about = {"model": model, "fingerprint": geometry.fingerprint, "layers": layers}
    header: bytes = msgpack.packb({"format": MAGIC, "version": VERSION} | about)
    return header


def entry_of(used: Used) -> bytes:
    """A forward's routing as an entry of a recording."""
    layers = [[y, len(rows[0]), _experts(rows), _weights(weights)] for y, rows, weights in used.routing if rows]
    entry: bytes = msgpack.packb(["used", used.step, used.phase, list(used.tokens), layers])
    return entry


def is_recording(path: Path) -> bool:
    with path.open("rb") as file:
        return MAGIC.encode() in file.read(64)


def read_recording(path: Path) -> Trace:
    """Raises DamagedCheckpoint where something whole is not what it should be; a torn tail is noted, not an error."""
    values, whole = _values(path)
    header = next(iter(values), None)
    if not isinstance(header, dict) or header.get("format") != MAGIC or header.get("version") != VERSION:
        raise DamagedCheckpoint(path, f"is no recording of routing, version {VERSION}")
    model, fingerprint = header.get("model"), header.get("fingerprint")
    if not isinstance(model, str) or not isinstance(fingerprint, str):
        raise DamagedCheckpoint(path, "does not say which model it is of")
    forwards: list[Forward] = []
    hints: dict[int, list[HintLayers]] = {}
    try:
        layers = {y[0]: LayerFacts(*y) for y in header["layers"]}
        for value in values[1:]:
            match value:
                case ["hint", int(step), list(guesses)]:
                    hints.setdefault(step, []).append(tuple((y, _weighted(e, w)) for y, e, w in guesses))
                case ["used", int(step), int(phase), list(tokens), list(routing)]:
                    forwards.append(_forward(step, phase, tokens, routing, tuple(hints.pop(step, ()))))
                case _:
                    raise DamagedCheckpoint(path, f"has an entry of an unknown kind after forward {len(forwards)}")
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise DamagedCheckpoint(path, f"has a broken entry after forward {len(forwards)}: {error}") from error
    note = "" if whole == path.stat().st_size else "the last entry is cut short and was left out"
    return Trace(path.name, model, layers, forwards, note, fingerprint)


def _values(path: Path) -> tuple[list[Any], int]:
    """The whole values from the start of the file, and how many bytes they take."""
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(path.read_bytes())
    values: list[Any] = []
    whole = 0
    try:
        while True:
            values.append(unpacker.unpack())
            whole = unpacker.tell()
    # OutOfData is an UnpackException: the file ends, perhaps inside a value. TypeError: a list as a map's key.
    except (msgpack.UnpackException, ValueError, TypeError):
        return values, whole


def _forward(step: int, phase: int, tokens: list[int], routing: list[Any], hints: tuple[HintLayers, ...]) -> Forward:
    rows, events = [], []
    for layer, top_k, packed_experts, packed_weights in routing:
        experts = struct.unpack(f"<{len(packed_experts) // 2}H", packed_experts)
        weights = struct.unpack(f"<{len(packed_weights) // 2}e", packed_weights)
        if not all(map(isfinite, weights)):
            raise ValueError(f"a weight in layer {layer} is no number")
        split = range(0, len(experts), top_k)
        of_layer = tuple(experts[i : i + top_k] for i in split)
        events.append(event_of(layer, of_layer, [weights[i : i + top_k] for i in split]))
        rows.append((layer, of_layer))
    return Forward(step, phase, tuple(tokens), tuple(events), tuple(rows), hints)


def _experts(rows: Any) -> bytes:
    flat = [e for row in rows for e in row]
    return struct.pack(f"<{len(flat)}H", *flat)


def _weights(rows: Any) -> bytes:
    flat = [max(-_LARGEST, min(w, _LARGEST)) for row in rows for w in row]
    return struct.pack(f"<{len(flat)}e", *flat)


def _weighted(experts: bytes, weights: bytes) -> tuple[tuple[int, float], ...]:
    count = len(experts) // 2
    return tuple(zip(struct.unpack(f"<{count}H", experts), struct.unpack(f"<{count}e", weights), strict=True))
