"""What serve says before it is ready: what the model costs, and what will hold it up."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtp_daemon.front import disk_probe
from mtp_daemon.front.warm import warmth
from mtp_daemon.sizes import binary_bytes
from mtp_protocol.geometry import Geometry, PoolLayout

# Stated estimates, used where nothing is measured: how fast weights go through the processor in a decode step (4-bit
# experts with float32 scales on two CPU cores; a base Apple GPU's share of its memory bandwidth), and a laptop's SSD.
_CPU_WEIGHTS_PER_S = 0.67e9
_METAL_WEIGHTS_PER_S = 60e9
_DISK_PER_S = 3e9
# Both sides are estimates of the worst case: nearer to each other than this, they do not say which one binds.
_CLEAR = 4.0


def resident_share(geometry: Geometry, layout: PoolLayout) -> float:
    """The share of all expert bytes that the pool can hold."""
    held = sum(geometry.banks[b.bank].slot_bytes * b.slots for b in layout.banks)
    return min(1.0, held / geometry.expert_bytes)


def announcement(
    model: Path,
    geometry: Geometry,
    layout: PoolLayout,
    facts: Mapping[str, Any],
    context: int,
    loader_facts: Mapping[str, Any],
) -> str:
    """Lines for the terminal. `facts` are the engine's."""
    dense = int(facts.get("dense_bytes", 0))
    kv_token = int(facts.get("kv_bytes_per_token", 0))
    state = int(facts.get("state_bytes", 0))
    share = resident_share(geometry, layout)
    slots = sum(b.slots for b in layout.banks)
    experts = sum(y.experts for y in geometry.layers)
    worst = geometry.worst_bytes_per_token
    own = int(facts.get("context") or context)
    length = f"{context} tokens" if context <= own else f"{own} tokens (the model's own limit)"
    mtp = "on" if facts.get("mtp") else "off"
    why = f" ({facts['mtp_why']})" if facts.get("mtp_why") else ""
    rows = [
        ("model", f"{model.name or model} ({geometry.model_type}, {'packed' if geometry.packed else 'not packed'})"),
        ("dense", binary_bytes(dense)),
        ("pool", f"{binary_bytes(layout.nbytes)}: {slots} of {experts} experts ({share:.0%} of their bytes)"),
        ("caches", f"{binary_bytes(kv_token * min(context, own) + state)} at most, for {length}"),
        ("reads", f"{worst / 1e6:.1f} MB a token at worst, in {geometry.reads_per_expert} read(s) an expert"),
        ("bound by", _bound(model, geometry, share, dense + worst, facts)),
        ("MTP", mtp + why),
    ]
    if adapter := facts.get("adapter"):
        rows.append(("adapter", str(adapter)))
    if warm := warmth(loader_facts):
        rows.append(("warm", warm))
    return "\n".join(f"{name:>9}  {text}" for name, text in rows)


def _bound(model: Path, geometry: Geometry, share: float, touched: int, facts: Mapping[str, Any]) -> str:
    """Disk or compute, and on what grounds. Misses are reckoned as if routing were uniform: at worst."""
    if share >= 1.0:
        return "compute: every expert fits the pool"
    piece = max(4096, min(b.source_bytes for b in geometry.banks) // 4096 * 4096)
    files = sorted(model.glob("experts-*.bin") if geometry.packed else model.glob("*.safetensors"))
    measured = disk_probe.bytes_per_second(max(files, key=lambda f: f.stat().st_size), piece) if files else None
    disk = measured or _DISK_PER_S
    metal = facts.get("backend") == "metal" or (sys.platform == "darwin" and "backend" not in facts)
    compute_s = touched / (_METAL_WEIGHTS_PER_S if metal else _CPU_WEIGHTS_PER_S)
    read_s = geometry.worst_bytes_per_token * (1 - share) / disk
    sure = max(read_s, compute_s) > _CLEAR * min(read_s, compute_s)
    which = ("the disk" if read_s > compute_s else "compute") if sure else "the disk or compute, too close to tell"
    how = "measured" if measured else "an estimate"
    return (
        f"{which}: {1000 * read_s:.1f} ms of reads a token if {1 - share:.0%} miss, at {disk / 1e9:.2f} GB/s ({how}), "
        f"about {1000 * compute_s:.1f} ms of compute (an estimate)"
    )
