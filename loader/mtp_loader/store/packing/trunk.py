"""The dense tensors of trunk and head, as jobs for the writer."""

from collections.abc import Mapping
from dataclasses import dataclass

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.experts import expert_module
from mtp_loader.store.files import Checkpoint
from mtp_loader.store.head import HeadFound, is_norm
from mtp_loader.store.layers import trunk_tensors
from mtp_loader.store.packing.dense import Job, Value, copy_job, load_lazily, quantise_job
from mtp_loader.store.packing.model import Reference
from mtp_loader.store.packing.settings import PackSettings
from mtp_loader.store.quantisation import Part, infer
from mtp_protocol.geometry import Dtype, Quantisation

_ROUTER = Quantisation("affine", 8, 64)  # mlx-lm's choice for the routers of these models
_FLOATS = ("F32", "BF16", "F16")
_PROTOCOL: dict[str, Dtype] = {"U32": "uint32", "U8": "uint8", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Dense:
    """What is to be written, each module's quantisation, and the source's tensors that no one needs."""

    jobs: tuple[Job, ...]
    quantisation: Mapping[str, Quantisation]
    left_out: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all outputs."""
        return sum(j.nbytes for j in self.jobs)


def trunk_dense(checkpoint: Checkpoint, reference: Reference, settings: PackSettings, widen: bool) -> Dense:
    """The trunk's dense tensors under mlx-lm's names. No expert is read: they pass `sanitize` unevaluated.

    Raises DamagedCheckpoint where a parameter of the model is in no file: mlx-lm would run with random numbers.
    """
    values = _sanitized(checkpoint, reference)
    needed = {n: v for n, v in values.items() if _is_needed(n, reference)}
    for name, shape in reference.shapes.items():
        if name not in needed:
            raise DamagedCheckpoint(checkpoint.path, f"no file holds the model's {name} {list(shape)}")
    jobs, found = _jobs(needed, settings, widen, reference)
    return Dense(tuple(jobs), found, tuple(sorted(values.keys() - needed.keys())))


def _sanitized(checkpoint: Checkpoint, reference: Reference) -> dict[str, Value]:
    tensors = trunk_tensors(checkpoint)
    lazily = load_lazily([h.path for h in checkpoint.headers])
    arrays = {name: lazily[name] for name in tensors}
    origin = {id(array): tensors[name] for name, array in arrays.items()}
    inside = tuple(f"{path}." for path in reference.switches.values())
    return {
        # A tensor that came out as the very object that went in was only renamed: its bytes are the file's.
        name: Value(origin.get(id(array)), array)
        for name, array in reference.sanitize(arrays).items()
        if not name.startswith(inside) and expert_module(name, tuple(array.shape)) is None
    }


def _is_needed(name: str, reference: Reference) -> bool:
    module, _, component = name.rpartition(".")
    return name in reference.shapes or (
        component in ("scales", "biases", "global_scale") and f"{module}.weight" in reference.shapes
    )


def _jobs(
    values: Mapping[str, Value], settings: PackSettings, widen: bool, reference: Reference
) -> tuple[list[Job], dict[str, Quantisation]]:
    jobs: list[Job] = []
    found: dict[str, Quantisation] = {}
    for name, value in sorted(values.items()):
        module, _, component = name.rpartition(".")
        chosen = None
        if component == "weight" and f"{module}.scales" in values:
            found[module] = _have(module, values, reference.shapes[name][-1])
        elif component == "weight" and settings.quantise and value.dtype in _FLOATS and value.shape:
            chosen = reference.quantisation(module, settings.quantise, value.shape[-1])
        if chosen is not None:
            found[module] = chosen
            jobs.append(quantise_job(module, value, chosen, widen))
        else:
            jobs.append(copy_job(name, value, widen))
    return jobs, found


def _have(module: str, values: Mapping[str, Value], inputs: int) -> Quantisation:
    parts = {}
    for component in ("weight", "scales", "biases"):
        value = values.get(f"{module}.{component}")
        if value is not None:
            if value.dtype not in _PROTOCOL:
                raise DamagedCheckpoint("model", f"{module}.{component} has the type {value.dtype}")
            parts[component] = Part(_PROTOCOL[value.dtype], value.shape)
    return infer(parts, inputs, module, "model")


def head_dense(head: HeadFound, settings: PackSettings, widen: bool) -> Dense:
    """The head's dense tensors under their plain names, norms in the x * w convention: 1.0 is added here, once."""
    lazily = {path: load_lazily([path]) for path in {t.file for t in head.tensors.values()}}
    jobs: list[Job] = []
    found = dict(head.quantisation)
    for name, tensor in head.tensors.items():
        module, _, component = name.rpartition(".")
        array = lazily[tensor.file][tensor.tensor]
        value = Value(tensor.source, array)
        if head.shift_norms and is_norm(name):
            value = Value(None, array + 1.0)
        chosen = None
        if settings.quantise and component == "weight" and found.get(module) == Quantisation():
            chosen = _head_settings(module, settings.quantise, value.shape[-1])
        if chosen is not None:
            found[module] = chosen
            jobs.append(quantise_job(module, value, chosen, widen))
        else:
            jobs.append(copy_job(name, value, widen))
    return Dense(tuple(jobs), found, ())


def _head_settings(module: str, asked: Quantisation, inputs: int) -> Quantisation | None:
    """As mlx-lm would quantise a trunk layer of these families: routers at 8 bits, the rest as asked."""
    chosen = _ROUTER if module.endswith(("mlp.gate", "shared_expert_gate")) else asked
    return None if inputs % chosen.group_size else chosen
