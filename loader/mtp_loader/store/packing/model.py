"""What mlx-lm's own model class says: its parameters, its SwitchGLUs, what it would quantise and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchGLU
from mlx_lm.utils import _get_classes

from mtp_loader.errors import NotStreamable
from mtp_loader.store.experts import layer_number
from mtp_loader.store.files import Checkpoint
from mtp_protocol.geometry import Quantisation

Predicate = Callable[[str, Module], bool | dict[str, Any]]


@dataclass(frozen=True)
class Reference:
    """An instance of the model's class. Its parameters are never evaluated, so it takes no memory."""

    model: Module

    @cached_property
    def switches(self) -> dict[int, str]:
        """The path of each SwitchGLU, by decoder layer."""
        found: dict[int, str] = {}
        for path, module in self.model.named_modules():  # type: ignore[no-untyped-call]
            if isinstance(module, SwitchGLU):
                number = layer_number(f"{path}.")
                if number is None or number in found:
                    raise NotStreamable(f"mlx-lm's model has a SwitchGLU at {path}, which belongs to no single layer")
                found[number] = path
        return found

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every dense parameter by name, as it is when nothing is quantised."""
        inside = tuple(f"{path}." for path in self.switches.values())
        parameters = self.model.parameters()  # type: ignore[no-untyped-call]
        flat: list[tuple[str, mx.array]] = list(tree_flatten(parameters))  # type: ignore[arg-type]
        return {name: value.shape for name, value in flat if not name.startswith(inside)}

    @cached_property
    def _modules(self) -> dict[str, Module]:
        modules = self.model.named_modules()  # type: ignore[no-untyped-call]
        return {path: module for path, module in modules if hasattr(module, "to_quantized")}

    def quantisation(self, path: str, asked: Quantisation, inputs: int) -> Quantisation | None:
        """How mlx-lm would quantise the module at `path` when asked for `asked`; None for not at all.

        The rules are those of mlx_lm.utils.quantize_model: the input features must fill whole groups, and the model's
        own predicate may refuse or choose other settings (routers at 8 bits).
        """
        module = self._modules.get(path)
        if module is None or inputs % asked.group_size:
            return None
        predicate: Predicate | None = getattr(self.model, "quant_predicate", None)
        answer = predicate(path, module) if predicate is not None else True
        if isinstance(answer, dict):
            chosen = Quantisation(answer.get("mode", "affine"), answer["bits"], answer["group_size"])
            return None if inputs % chosen.group_size else chosen
        return asked if answer else None

    def sanitize(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The weights under mlx-lm's names. Nothing is evaluated, so routed experts among them are never read."""
        sanitized: dict[str, mx.array] = dict(weights)
        if hasattr(self.model, "sanitize"):
            sanitized = dict(self.model.sanitize(sanitized))
        return sanitized


def reference_of(checkpoint: Checkpoint) -> Reference:
    """Build the model's class from the config. Raises NotStreamable where mlx-lm cannot."""
    config = checkpoint.config
    if "model_file" in config:
        raise NotStreamable(f"{checkpoint.path}: its config asks to run {config['model_file']!r}; we run no such code")
    try:
        model_class, arguments = _get_classes(config)
        model: Module = model_class(arguments.from_dict(config))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise NotStreamable(
            f"mlx-lm cannot build a {checkpoint.model_type!r} model from this config: {error}"
        ) from error
    return Reference(model)


def config_with(
    config: dict[str, Any], dense: Mapping[str, Quantisation], default: Quantisation | None
) -> dict[str, Any]:
    """config.json of the packed store: `quantization` as the tensors are, each module that differs by name.

    `dense` is the quantisation of each dense module by path, `default` what the experts have.
    """
    made = {k: v for k, v in config.items() if k not in ("quantization", "quantization_config")}
    if isinstance(made.get("text_config"), dict):
        made["text_config"] = {k: v for k, v in made["text_config"].items() if k != "quantization_config"}
    quantised = [q for q in dense.values() if q.mode != "none"]
    if not quantised and (default is None or default.mode == "none"):
        return made
    usual = max(set(quantised), key=quantised.count) if quantised else default
    assert usual is not None
    entry: dict[str, Any] = _settings(usual)
    entry.update({path: _settings(q) for path, q in sorted(dense.items()) if q not in (usual, Quantisation())})
    made["quantization"] = entry
    return made


def _settings(q: Quantisation) -> dict[str, Any]:
    return {"group_size": q.group_size, "bits": q.bits, "mode": q.mode}
