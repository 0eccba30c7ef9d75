"""Which device MLX computes on, and how much memory it may keep."""

import sys

import mlx.core as mx

# Freed buffers that MLX keeps for the next forward. What it keeps the pool and the page cache do not have.
CACHE_BYTES = 64 << 20


def use_device() -> str:
    """ "cpu" or "metal". Called once, by the MLX thread, before anything is computed.

    Linux: the CPU backend, also where a CUDA build is installed: the pool's view is made for it. macOS: Metal.
    """
    mx.set_cache_limit(CACHE_BYTES)
    if sys.platform != "darwin":
        mx.set_default_device(mx.cpu)
        return "cpu"
    return "metal"


def wire(budget_bytes: int) -> None:
    """Metal: keep what the service was sized for, pool, dense weights and caches, from being paged out between two
    tokens; never more than the system recommends. Other backends have nothing to wire.
    """
    if sys.platform == "darwin":
        recommended = int(mx.device_info()["max_recommended_working_set_size"])
        mx.set_wired_limit(min(budget_bytes + CACHE_BYTES, recommended))


def release() -> None:
    """On the way out: nothing stays wired, no freed buffer is kept."""
    if sys.platform == "darwin":
        mx.set_wired_limit(0)
    mx.clear_cache()
