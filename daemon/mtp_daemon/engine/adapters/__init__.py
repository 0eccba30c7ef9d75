"""What a MoE block does around its experts, one file a family of blocks.

mlx-lm's blocks compute router, experts and shared expert in one call that knows nothing of waiting. An adapter is the
same block, the same operations in the same order of the sum, with the shared expert handed to the experts' layer so
that it is computed while misses load, the router's weights handed on for the loader's policy, and the router shown to
the layers before it (hints). A block without an adapter streams all the same, without these three.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx.nn.layers.base import Module

from mtp_daemon.engine.adapters import gated_moe, gpt_oss, qwen3_moe, qwen3_next

Probe = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Adapter:
    """`block` takes the place of exactly the mlx-lm class `of`; `probe(block)` shows its router."""

    of: type[Module]
    block: type[Module]
    probe: Callable[[Module], Probe]


ADAPTERS = {
    a.of: a
    for a in (
        *(Adapter(of, block, qwen3_next.probe) for of, block in qwen3_next.BLOCKS),
        *(Adapter(of, block, qwen3_moe.probe) for of, block in qwen3_moe.BLOCKS),
        *(Adapter(of, block, gated_moe.probe) for of, block in gated_moe.BLOCKS),
        *(Adapter(of, block, gpt_oss.probe) for of, block in gpt_oss.BLOCKS),
    )
}


def adapt(block: Module) -> Probe | None:
    """Turn the block into its adapter, in place, and return its probe; None where there is no adapter for its class.

    A module's `__call__` is looked up on its class, so the instance changes class; parameters keep their names.
    """
    adapter = ADAPTERS.get(type(block))
    if adapter is None:
        return None
    object.__setattr__(block, "__class__", adapter.block)
    return adapter.probe(block)
