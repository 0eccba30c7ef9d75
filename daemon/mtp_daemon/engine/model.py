"""Loading an mlx-lm model without its experts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import _get_classes, load_config, load_model

from mtp_daemon.engine.config_number import config_number
from mtp_daemon.engine.errors import EngineError, RequestRefused, first_line
from mtp_daemon.engine.install import Installed, expert_modules, install
from mtp_daemon.engine.stream import ExpertStream
from mtp_daemon.engine.trunk import Trunk
from mtp_loader.store.files import model_sizes

SHORTEST_CONTEXT = 16  # as for the setting: with less there is no room for a prompt and an answer


@dataclass(frozen=True)
class Loaded:
    """`facts` is what `Ready` tells: dense_bytes, kv_bytes_per_token, state_bytes, context, model_type, adapter."""

    model: Any
    config: dict[str, Any]
    trunk: Trunk
    installed: Installed
    facts: dict[str, Any]


def load_streamed(path: Path, stream: ExpertStream) -> Loaded:
    """Load the checkpoint or packed store at `path`, its experts left to `stream`.

    No expert tensor is ever evaluated: mlx-lm loads lazily, the experts' tensors are dropped before they reach the
    model, and the dense ones are evaluated one by one, so that the peak is their sum and one tensor more.
    Raises RequestRefused naming the tensor, the model type or what of the config is wrong.
    """
    model, config = _load_lazily(path)
    installed = install(model, stream)
    _evaluate(model)
    trunk = Trunk(model)
    facts = {
        "model_type": config["model_type"],
        "dense_bytes": sum(v.nbytes for v in flat(model.parameters()).values()),
        "context": _context(config),
        "adapter": not installed.unadapted,
        "unadapted": list(installed.unadapted),
        "backend": "metal" if mx.metal.is_available() else "cpu",
        **_tried(path, trunk, stream),
    }
    return Loaded(model, config, trunk, installed, facts)


def _load_lazily(path: Path) -> tuple[Any, dict[str, Any]]:
    """The model with lazy dense weights; its SwitchGLU modules keep mlx-lm's lazy random ones, which no one reads."""
    plain: list[type[Module]] = []

    def classes(config: dict[str, Any]) -> tuple[type[Module], Any]:
        model_class, arguments = _get_classes(config)
        plain.append(model_class)

        class DenseOnly(model_class):  # type: ignore[misc, valid-type]
            def load_weights(self, weights: list[tuple[str, mx.array]], strict: bool = True) -> Module:
                dense = _dense_weights(self, weights)
                loaded: Module = super().load_weights(dense, strict=False)
                return loaded

        return DenseOnly, arguments

    try:
        # mlx-lm reads a tensor's quantisation off the tensor, but only where the config says that something is
        # quantised. These defaults apply to nothing else: a weight without scales stays as it is.
        silent = {"quantization": {"group_size": 64, "bits": 4}} if _config_is_silent(path) else None
        model, config = load_model(path, lazy=True, strict=False, model_config=silent, get_model_classes=classes)
    except (EngineError, MemoryError):
        raise
    except Exception as error:  # mlx-lm's own for whatever a config or a file holds: none of it is our bug
        raise RequestRefused(f"mlx-lm cannot load {path}: {first_line(error)}: see its config.json") from error
    object.__setattr__(model, "__class__", plain[0])
    return model, config


def _config_is_silent(path: Path) -> bool:
    config = load_config(path)
    text = config.get("text_config", {})
    return not any(key in c for c in (config, text) for key in ("quantization", "quantization_config"))


def _dense_weights(model: Any, weights: list[tuple[str, mx.array]]) -> list[tuple[str, mx.array]]:
    """Everything but the experts, checked as strictly as mlx-lm would: all there, nothing else, the right shapes.

    The MTP head's tensors, which a checkpoint may carry beside the model's, are the head's business.
    """
    experts = tuple(f"{p}." for p in expert_modules(model))
    if not experts:
        name = getattr(model, "model_type", type(model).__name__)
        raise RequestRefused(f"model type {name!r} keeps no experts in SwitchGLU: there is nothing to stream")
    wanted = {k: v for k, v in flat(model.parameters()).items() if not k.startswith(experts)}
    dense = {k: v for k, v in weights if not k.startswith(experts) and "mtp" not in k.split(".")}
    if missing := sorted(wanted.keys() - dense.keys()):
        raise RequestRefused(f"the checkpoint has no tensor {missing[0]!r} ({len(missing)} are missing)")
    if extra := sorted(dense.keys() - wanted.keys()):
        raise RequestRefused(f"the checkpoint has a tensor {extra[0]!r} that the model has no place for ({len(extra)})")
    for name, value in dense.items():
        if value.shape != wanted[name].shape:
            raise RequestRefused(f"tensor {name!r} has shape {value.shape}; the config asks for {wanted[name].shape}")
    return list(dense.items())


def _evaluate(model: Any) -> None:
    """Read the dense weights, one at a time. Arrays that modules keep beside their parameters are computed too: left
    lazy they could be evaluated only by the thread that built them.
    """
    for value in flat(model.parameters()).values():
        mx.eval(value)
    for _, module in model.named_modules():
        for value in _arrays((*module.values(), *vars(module).values())):
            mx.eval(value)


def flat(tree: Any) -> dict[str, mx.array]:
    """A tree of parameters as name to array."""
    return {str(k): v for k, v in tree_flatten(tree) if isinstance(v, mx.array)}  # type: ignore[str-unpack]


def _arrays(values: Any) -> Iterator[mx.array]:
    for value in values:
        if isinstance(value, mx.array):
            yield value
        elif isinstance(value, list | tuple):
            yield from _arrays(value)


def _tried(path: Path, trunk: Trunk, stream: ExpertStream) -> dict[str, int]:
    """`_cache_facts`, where a config whose sizes contradict each other shows first."""
    try:
        return _cache_facts(trunk, stream)
    except (EngineError, MemoryError):
        raise
    except Exception as error:  # of mlx-lm's model, built as the config says
        raise RequestRefused(
            f"{path}: the model that config.json describes does not run: {first_line(error)}: mend it"
        ) from error


def _cache_facts(trunk: Trunk, stream: ExpertStream) -> dict[str, int]:
    """Bytes the caches take: from a forward over one token that is built, to learn the shapes, and never evaluated."""
    caches = trunk.make_cache()
    stream.dry = True
    try:
        trunk.hidden(mx.array([[0]]), caches)
    finally:
        stream.dry = False
    per_token = fixed = 0
    for cache in caches:
        for part in getattr(cache, "caches", (cache,)):
            arrays = list(flat(part.state).values())
            if isinstance(part, KVCache):
                per_token += sum(a.nbytes // a.shape[-2] for a in arrays)
            else:
                window = getattr(part, "max_size", None)  # a rotating window grows to this many rows and no further
                fixed += sum(a.nbytes * (window // a.shape[-2] if window else 1) for a in arrays)
    return {"kv_bytes_per_token": per_token, "state_bytes": fixed}


def _context(config: dict[str, Any]) -> int | None:
    """The longest text the model was made for, in tokens."""
    return config_number(model_sizes(config), "max_position_embeddings", SHORTEST_CONTEXT, 1 << 40)
