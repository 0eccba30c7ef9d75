"""Which device MLX computes on, and how much memory it may keep."""

import sys

import mlx.core as mx

# Freed buffers that MLX keeps for the next forward. What it keeps the pool and the page cache do not have.
CACHE_BYTES = 64 << 20


def use_device() -> str:
    """ "cpu" or "metal". Called once, by the MLX thread, before anything is computed.

    Linux: the CPU backend, also where a CUDA build is installed: the pool's view is made for it. macOS: Metal; the
    dense weights and the pool are wired as far as the system recommends, so that the pool is not paged out between
    two tokens.
    """
    mx.set_cache_limit(CACHE_BYTES)
    if sys.platform != "darwin":
        mx.set_default_device(mx.cpu)
        return "cpu"
    mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
    return "metal"
