"""What a stream of forwards did, counted."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

COUNTED_BY_LAYER = 16  # tokens of a forward: a prompt's chunks have any length, and each would be counted for ever


@dataclass
class StreamStats:
    """`hits` and `misses` count distinct experts per (forward, layer): hits were resident when the router's ids were
    read. `wait_s` is the time spent blocked for misses; what was running meanwhile is not subtracted. `unions[n]`
    counts how many distinct experts one layer of a forward over n tokens needed. `layer_unions[layer, n]`
    is the same of one layer, for few tokens. `bytes_read` is what all experts that arrived take on disk; among them
    are `prefetched` experts of `prefetched_bytes` that came unasked. Some of these count as misses too: they were on
    their way when the router's ids were read.
    """

    forwards: int = 0
    tokens: int = 0
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    prefetched: int = 0
    prefetched_bytes: int = 0
    demands: int = 0
    waves: int = 0
    retries: int = 0
    wait_s: float = 0.0
    hints: int = 0
    rejoins: int = 0
    stale_messages: int = 0
    bad_messages: int = 0
    slots_verified: int = 0
    host_reads: int = 0
    unions: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    layer_unions: defaultdict[tuple[int, int], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
