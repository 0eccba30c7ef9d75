"""Run by itself: which experts mlx-lm's blocks and our adapters of them choose when all scores are equal."""

import json
import sys
from typing import Any

import mlx.core as mx

from mtp_daemon.engine.adapters import adapt
from mtp_daemon.engine.install import expert_modules
from support.checkpoints import make_model
from support.families import FAMILIES


class Experts:
    """Stands where a block keeps its experts and remembers the ids it was given."""

    def __init__(self) -> None:
        self.ids: list[Any] = []

    def __call__(self, x: mx.array, ids: mx.array, *_: Any) -> mx.array:
        self.ids = ids.tolist()
        return mx.zeros((*ids.shape, x.shape[-1]))


def main() -> None:
    chosen = {}
    for family in FAMILIES:
        model, _ = make_model(family, quant=None)
        path = next(iter(expert_modules(model)))
        block: Any = model
        for part in path.split(".")[:-1]:
            block = block[int(part)] if isinstance(block, list) else block[part]
        router = block["router"] if "router" in block else block["gate"]
        router.update({k: mx.zeros_like(v) for k, v in router.parameters().items()})
        experts = Experts()
        del block[path.split(".")[-1]]
        object.__setattr__(block, path.split(".")[-1], experts)
        x = mx.random.normal((1, 3, 128))
        mx.eval(block(x))
        plain = experts.ids[0]
        assert adapt(block) is not None
        mx.eval(block(x))
        chosen[family] = (plain, experts.ids[0])
    print(json.dumps(chosen))


if __name__ == "__main__":
    sys.exit(main())
