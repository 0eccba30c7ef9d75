"""What a Qwen MTP head consists of: the tensors it must have, their quantisation, the convention of its norms."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.experts import ExpertLayer
from mtp_loader.store.planes import plane_dtype
from mtp_loader.store.quantisation import Part, infer
from mtp_loader.store.safetensors import Header, Tensor
from mtp_protocol.geometry import Quantisation

_NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
_LAYER_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
_ATTENTION = tuple(f"self_attn.{p}_proj" for p in "qkvo")
_SHARED = tuple(f"mlp.shared_expert.{p}_proj" for p in ("gate", "up", "down"))
_ROUTER = ("mlp.gate", "mlp.shared_expert_gate")
_COMPONENTS = ("scales", "biases", "bias")


def require_complete(dense: Mapping[str, Tensor], layers: Mapping[int, ExpertLayer], file: Path) -> None:
    """Raise DamagedCheckpoint unless the head has every tensor and none that would go unused."""
    if sorted(layers) != list(range(max(len(layers), 1))):
        raise DamagedCheckpoint(file, f"the MTP head has experts in the layers {sorted(layers)}, not from 0 on")
    modules = {"fc", *_NORMS}
    for n in layers:
        modules.update(f"layers.{n}.{m}" for m in (*_LAYER_NORMS, *_ATTENTION, *_SHARED, *_ROUTER))
    if missing := sorted(m for m in modules if f"{m}.weight" not in dense):
        raise DamagedCheckpoint(file, f"the MTP head has no {missing[0]}.weight ({len(missing)} tensors are missing)")
    known = {f"{m}.{c}" for m in modules for c in ("weight", *_COMPONENTS)}
    if unknown := sorted(dense.keys() - known):
        raise DamagedCheckpoint(
            file, f"the MTP head has a tensor we cannot use: {unknown[0]} ({len(unknown)} such); refused"
        )


def norms_are_centred(layers: Mapping[int, ExpertLayer], headers: Iterable[Header]) -> bool:
    """Whether the head's norms are zero-centred as in the original files, told from the layout alone.

    A conversion stacks the experts and adds 1.0 in the same step, so the form of the head's own experts decides. A
    head without experts is judged by the gated-delta convolution beside it: `[channels, 1, kernel]` is the original.
    The weights' means say nothing: both conventions have `pre_fc_norm_*` means below 0.5.
    """
    for layer in layers.values():
        return layer.form != "stacked"
    for header in headers:
        for name, tensor in header.tensors.items():
            if "conv1d.weight" in name:
                return tensor.shape[-1] != 1
    return False


def infer_dense(dense: Mapping[str, Tensor], file: str) -> dict[str, Quantisation]:
    """The quantisation of each matrix of the head by module, from types and shapes alone."""
    hidden = dense["norm.weight"].shape[-1]
    found: dict[str, Quantisation] = {}
    for name, tensor in dense.items():
        module, _, component = name.rpartition(".")
        if component != "weight" or len(tensor.shape) < 2:
            continue
        parts = {
            c: Part(plane_dtype(dense[f"{module}.{c}"]), dense[f"{module}.{c}"].shape)
            for c in ("weight", "scales", "biases")
            if f"{module}.{c}" in dense
        }
        found[module] = infer(parts, _inputs(module, dense, hidden), f"MTP head, {module}", file)
    return found


def _inputs(module: str, dense: Mapping[str, Tensor], hidden: int) -> int:
    """A matrix's input features, from the output rows of the one before it."""
    if module == "fc":
        return 2 * hidden
    if module.endswith("self_attn.o_proj"):
        # q_proj's rows are queries and, as many again, the gates of the output.
        return dense[f"{module.removesuffix('o_proj')}q_proj.weight"].shape[0] // 2
    if module.endswith("shared_expert.down_proj"):
        return dense[f"{module.removesuffix('down_proj')}gate_proj.weight"].shape[0]
    return hidden
