"""What the machine has, and what a model needs besides its pool."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mtp_protocol.geometry import Geometry

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes: of the machine (or of the control group that we are confined to), and free for us now."""

    total: int
    available: int


def memory_now() -> Memory:
    virtual = psutil.virtual_memory()
    total, available = int(virtual.total), int(virtual.available)
    for limit, used in _cgroup_limits():
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return Memory(total, available)


def _cgroup_limits() -> list[tuple[int, int]]:
    """`(limit, used)` of each control group (v2) above us that has a limit; none on other systems."""
    found = []
    for directory in cgroup_directories():
        with contextlib.suppress(OSError, ValueError):
            limit = (directory / "memory.max").read_text().strip()
            if limit != "max":
                found.append((int(limit), int((directory / "memory.current").read_text())))
    return found


def cgroup_directories() -> list[Path]:
    """Our own control group (v2) and those above it, the innermost first; none on other systems."""
    try:
        line = next(x for x in Path("/proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = _CGROUP / line[3:].lstrip("/")
    return [directory for directory in (group, *group.parents) if directory.is_relative_to(_CGROUP)]


def dense_bytes(model: Path, geometry: Geometry) -> int:
    """Bytes of the weights that are no experts, from the files' sizes: an estimate until the engine has loaded them."""
    tensors = sum(f.stat().st_size for f in model.glob("*.safetensors"))
    if geometry.packed:
        return tensors
    experts = sum(y.experts * geometry.banks[y.bank].source_bytes for y in geometry.layers if not y.is_head)
    return max(0, tensors - experts)


def kv_bytes_per_token(model: Path) -> int:
    """Bytes the attention caches grow by with each token, estimated from config.json; 0 when it does not tell."""
    try:
        config: Mapping[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config") or config
        width = 4 if str(config.get("torch_dtype") or config.get("dtype")) == "float32" else 2
        layers = int(config["num_hidden_layers"])
        if kinds := config.get("layer_types"):
            layers = sum(kind != "linear_attention" for kind in kinds)
        elif every := config.get("full_attention_interval"):
            layers //= int(every)
        if rank := config.get("kv_lora_rank"):
            return layers * width * (int(rank) + int(config.get("qk_rope_head_dim", 0)))
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        return 2 * layers * width * head_dim * int(config.get("num_key_value_heads") or heads)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
