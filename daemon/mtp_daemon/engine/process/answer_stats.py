"""The numbers that go with an answer. All are finite and none is negative, whatever happened."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from mtp_daemon.engine.stream import Stream
from mtp_protocol.ranks import Sizes

_STREAM = (
    "hits", "misses", "bytes_read", "prefetched", "prefetched_bytes", "waves", "demands", "retries", "forwards",
    "slots_verified",
)  # fmt: skip


@dataclass
class Clock:
    """Marks of one answer on the monotonic clock, and the stream's counters when it began."""

    stream: Stream

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.prefilled: float | None = None
        self.first: float | None = None
        self.first_at_s: float | None = None
        self._before = {name: getattr(self.stream.stats, name) for name in _STREAM}
        self._wait_s = self._decode_wait_s = self.stream.stats.wait_s
        self._decode_bytes = self.stream.stats.bytes_read
        self._unions = {tokens: Counter(sizes) for tokens, sizes in self.stream.stats.unions.items()}
        self._layer_unions = {at: Counter(sizes) for at, sizes in self.stream.stats.layer_unions.items()}
        mx.reset_peak_memory()
        self._memory = mx.get_active_memory()

    def prefill_ended(self) -> None:
        self.prefilled = time.perf_counter()
        self._decode_wait_s, self._decode_bytes = self.stream.stats.wait_s, self.stream.stats.bytes_read

    def token(self) -> None:
        """A run was committed."""
        if self.first is None:
            self.first = time.perf_counter()

    def sent(self) -> None:
        """Tokens are handed to the I/O thread."""
        if self.first_at_s is None:
            self.first_at_s = time.monotonic()

    def numbers(self, decoded: dict[str, Any], answer_tokens: int, delivered: int) -> dict[str, Any]:
        """`decoded` is `Decoder.stats()`; of its committed tokens `dropped` are not in the answer: they came after
        its end, or are a stop string. `tok_per_s` counts from the end of prefill. `delivered`: tokens of the answer
        that an engine before this one had sent. `decode_bytes_read`: all that came during decode, asked for or not.
        `first_at_s`: when the first tokens were sent, on the machine's monotonic clock, which other processes read too.
        `unions`: tokens of a forward → distinct experts of a layer → how often; `unions_by_layer`:
        under each layer their mean and ranks, for forwards over few tokens. Memory is what MLX holds, the pool with it
        on the CPU backend.
        """
        now = time.perf_counter()
        seconds = decoded.pop("seconds", {})
        decode_s = now - self.prefilled if self.prefilled is not None else 0.0
        committed = decoded.get("committed", 0)
        after = {name: getattr(self.stream.stats, name) - before for name, before in self._before.items()}
        numbers = {
            **decoded,
            **after,
            **{f"{name}_s": value for name, value in seconds.items() if name not in ("stall", "total")},
            "stall_s": self.stream.stats.wait_s - self._wait_s,
            "decode_bytes_read": self.stream.stats.bytes_read - self._decode_bytes,
            "decode_stall_s": self.stream.stats.wait_s - self._decode_wait_s,
            "ttft_s": (self.first if self.first is not None else now) - self.began,
            "prefill_s": (self.prefilled if self.prefilled is not None else now) - self.began,
            "decode_s": decode_s,
            "total_s": now - self.began,
            "tok_per_s": committed / decode_s if decode_s > 0 else 0.0,
            "dropped": max(0, committed + delivered - answer_tokens),
            "unions": self._unions_since(),
            "unions_by_layer": self._layer_unions_since(),
            "memory_start_bytes": self._memory,
            "memory_peak_bytes": mx.get_peak_memory(),
        }
        if self.first_at_s is not None:
            numbers["first_at_s"] = self.first_at_s
        if "offered_by_position" in numbers:
            numbers["drafted_by_position"] = numbers.pop("offered_by_position")
        return numbers

    def _unions_since(self) -> dict[str, dict[str, int]]:
        since = {}
        for tokens, sizes in sorted(self.stream.stats.unions.items()):
            if new := sizes - self._unions.get(tokens, Counter()):
                since[str(tokens)] = {str(size): new[size] for size in sorted(new)}
        return since

    def _layer_unions_since(self) -> dict[str, dict[str, dict[str, float]]]:
        since: dict[str, dict[str, dict[str, float]]] = {}
        for (layer, tokens), sizes in sorted(self.stream.stats.layer_unions.items()):
            if new := sizes - self._layer_unions.get((layer, tokens), Counter()):
                since.setdefault(str(layer), {})[str(tokens)] = asdict(Sizes.of(new))
        return since
