"""Finds a checkpoint's MTP head (Qwen3-Next, Qwen3.5 and 3.6 MoE), wherever and however its tensors are kept.

Tensors decide, never the config: mlx-lm's conversions drop `mtp.*` while the config still declares a layer. Places, in
this order: the file or directory asked for, the checkpoint's own shards, files beside them that mlx-lm does not load
(`mtp.safetensors`). Names are brought to one form: `fc.weight`, `layers.0.self_attn.q_proj.weight`, ….
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.experts import EXPERT_COUNTS, ExpertLayer, recognise
from mtp_loader.store.files import Checkpoint, merge, read_checkpoint, sidecar_headers
from mtp_loader.store.head_tensors import infer_dense, norms_are_centred, require_complete
from mtp_loader.store.index import PackedIndex, is_packed, read_index
from mtp_loader.store.safetensors import Header, Tensor, read_header
from mtp_protocol.geometry import Quantisation

_PREFIX = re.compile(r"(?:(?:model|language_model|model\.language_model|language_model\.model)\.)?mtp\.(.+)")
_BARE = ("fc.weight", "pre_fc_norm_hidden.weight", "pre_fc_norm_embedding.weight")
_OTHER_HEADS = re.compile(r"(?:.+\.)?layers\.(\d+)\.(?:eh_proj|enorm|hnorm|shared_head\.\w+)\.weight")
MTP_DENSE = "mtp-dense.safetensors"


@dataclass(frozen=True)
class HeadTensor:
    """A dense tensor of the head: `source` is where its bytes lie."""

    source: Tensor

    @property
    def file(self) -> Path:
        """The safetensors file."""
        return self.source.path

    @property
    def tensor(self) -> str:
        """The name under which the file has it."""
        return self.source.name

    @property
    def dtype(self) -> str:
        """safetensors' name of the type."""
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.source.shape


@dataclass(frozen=True)
class HeadFound:
    """A whole head.

    `where` says in a few words where it was found. `tensors` are its dense tensors by normalised name.
    `shift_norms`: the norms are zero-centred, so 1.0 must be added to every one of `norm_names`, once.
    `quantisation` is by module (`"fc"`, `"layers.0.mlp.gate"`, …). `experts` is empty for a packed store, whose index
    holds them.
    """

    where: str
    tensors: Mapping[str, HeadTensor]
    shift_norms: bool
    quantisation: Mapping[str, Quantisation]
    experts: tuple[ExpertLayer, ...]

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The RMS norms among `tensors`."""
        return tuple(n for n in self.tensors if is_norm(n))


@dataclass(frozen=True)
class HeadMissing:
    """No head; `why` is one line for a person."""

    why: str


def is_norm(name: str) -> bool:
    """Whether a normalised name is one of the head's seven RMS norms."""
    return "norm" in name.rsplit(".", 2)[-2]


def find_head(path: Path, head: Path | None = None) -> HeadFound | HeadMissing:
    """The head of the checkpoint or packed store at `path`, or of `head` (a file or a directory) where that is given.

    Raises DamagedCheckpoint where some but not all of a head's tensors are there, or ones we do not know.
    """
    if is_packed(path):
        return packed_head(read_index(path)) if head is None else head_of_sidecar(head, None)
    return head_of(read_checkpoint(path), head)


def head_of(checkpoint: Checkpoint, head: Path | None = None) -> HeadFound | HeadMissing:
    """As `find_head`, for a checkpoint that is already read."""
    if head is not None:
        return head_of_sidecar(head, checkpoint)
    own = _prefixed(checkpoint.tensors)
    if own:
        return _found("inside the checkpoint", own, checkpoint.headers, checkpoint)
    for header in checkpoint.others:
        tensors = _prefixed(header.tensors) or _bare(header.tensors)
        if tensors:
            return _found(f"in {header.path.name}", tensors, (header,), checkpoint)
    return HeadMissing(_why(checkpoint))


def head_of_sidecar(head: Path, checkpoint: Checkpoint | None) -> HeadFound | HeadMissing:
    """The head in a file or directory of its own; raises BadRequest where `head` holds no safetensors file."""
    headers = sidecar_headers(head)
    tensors = merge(headers)
    chosen = _prefixed(tensors) or _bare(tensors)
    if not chosen:
        return HeadMissing(f"{head} holds no MTP tensors (mtp.fc.weight, …)")
    return _found(f"in {head}", chosen, headers, checkpoint)


def packed_head(index: PackedIndex) -> HeadFound | HeadMissing:
    """The head that a packed store keeps, its norms already shifted; or the reason the packer recorded."""
    if index.head_missing is not None:
        return HeadMissing(index.head_missing)
    header = read_header(index.path / MTP_DENSE)
    return HeadFound(
        "in the packed store",
        _table(header.tensors),
        False,
        infer_dense(header.tensors, str(header.path)),
        (),
    )


def _found(
    where: str, tensors: Mapping[str, Tensor], headers: tuple[Header, ...], checkpoint: Checkpoint | None
) -> HeadFound:
    declared = checkpoint.size(*EXPERT_COUNTS) if checkpoint else None
    layers = recognise(tensors, declared)
    used = {name for layer in layers.values() for name in layer.names}
    dense = {name: t for name, t in tensors.items() if name not in used}
    file = next(iter(tensors.values())).path
    require_complete(dense, layers, file)
    return HeadFound(
        where,
        _table(dense),
        norms_are_centred(layers, headers),
        infer_dense(dense, str(file)),
        tuple(layers[n] for n in sorted(layers)),
    )


def _table(tensors: Mapping[str, Tensor]) -> dict[str, HeadTensor]:
    for name, tensor in tensors.items():
        if tensor.is_fp8:
            raise DamagedCheckpoint(tensor.path, f"the head's {name} is FP8 ({tensor.dtype}), which cannot be used")
    return {name: HeadTensor(t) for name, t in sorted(tensors.items())}


def _prefixed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {m[1]: t for name, t in tensors.items() if (m := _PREFIX.fullmatch(name))}


def is_head_tensor(name: str) -> bool:
    """Whether a checkpoint's tensor belongs to an MTP head by its prefix."""
    return _PREFIX.fullmatch(name) is not None


def _bare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(tensors) if all(n in tensors for n in _BARE) else {}


def _why(checkpoint: Checkpoint) -> str:
    depth = checkpoint.size("num_hidden_layers")
    for name in checkpoint.tensors:
        if (match := _OTHER_HEADS.fullmatch(name)) and depth is not None and int(match[1]) >= depth:
            return f"the checkpoint has a {checkpoint.model_type} head ({name}), a kind that is not supported yet"
    declared = checkpoint.size("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")
    if declared:
        return (
            f"the config declares {declared} MTP layer(s), but no file holds mtp.* tensors: the conversion dropped "
            "them (give the original's with --mtp)"
        )
    return "the checkpoint has no mtp.* tensors"
