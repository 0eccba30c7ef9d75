"""How long a replay takes: `python tests/bench/bench_replay.py [events]`. Wants a quiet machine.

Goals: LRU over 100,000 events in under 1 s, every policy together in under 20 s. Policies are compared on recorded
routing elsewhere; here only the number of events counts.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mtp_loader.policy.registry import CLAIRVOYANT, NAMES
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.run import replay
from mtp_loader.replay.table import Plan, maker, rows
from mtp_loader.replay.trace import DECODE, Forward, LayerFacts, Trace
from support.traces import made_up_events

LAYERS, EXPERTS, TOP_K, SHARE = 48, 128, 8, 0.2


def main(count: int) -> None:
    forwards = -(-count // LAYERS)
    events = made_up_events(forwards, LAYERS, EXPERTS, TOP_K, seed=7, skew=10.0)
    facts = {y: LayerFacts(y, 0, EXPERTS, TOP_K, 1_769_472) for y in range(LAYERS)}
    grouped = [Forward(i, DECODE, (), tuple(events[i * LAYERS : (i + 1) * LAYERS])) for i in range(forwards)]
    trace = Trace("made up", "", facts, grouped)
    total = 0.0
    for name in (*NAMES, CLAIRVOYANT):
        began = time.process_time()
        tally = replay(trace, maker(name), trace.slots(SHARE))[DECODE]
        took = time.process_time() - began
        total += took
        print(f"{name:<10} {took:7.2f} s  {took / len(events) * 1e6:7.1f} us an event  hit {tally.hit_rate:.1%}")
    print(f"{'all':<10} {total:7.2f} s for {len(events)} events, one process")
    jobs = os.cpu_count() or 1
    began = time.perf_counter()
    rows(trace, Plan((*NAMES, CLAIRVOYANT), (SHARE,), ("none",), Machine(3e9, 3e-4)), jobs)
    print(f"{'all':<10} {time.perf_counter() - began:7.2f} s in {jobs} processes, as the command does it (wall clock)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
