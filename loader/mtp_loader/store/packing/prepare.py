"""Everything that is decided before a pack writes its first byte."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtp_loader.errors import BadRequest, NotStreamable
from mtp_loader.store.files import Checkpoint, read_checkpoint
from mtp_loader.store.head import HeadFound, HeadMissing, head_of
from mtp_loader.store.index import VERSION
from mtp_loader.store.layers import depth_of, plain_layers, trunk_experts
from mtp_loader.store.open import source_fingerprint
from mtp_loader.store.packing.model import Reference, reference_of
from mtp_loader.store.packing.plan import LayerPlan, place_layers, plan_layer, require_effect
from mtp_loader.store.packing.settings import PackSettings
from mtp_loader.store.packing.trunk import Dense, head_dense, trunk_dense
from mtp_protocol.geometry import Quantisation


@dataclass(frozen=True)
class Prepared:
    """One pack: what is read, what will be written."""

    checkpoint: Checkpoint
    settings: PackSettings
    fingerprint: str
    plans: tuple[LayerPlan, ...]
    experts_files: tuple[int, ...]
    trunk: Dense
    head: Dense | None
    head_missing: str | None

    @property
    def purpose(self) -> str:
        """What must be the same for an interrupted pack to go on."""
        text = json.dumps([VERSION, self.fingerprint, self.settings.plain()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of experts and dense weights."""
        return sum(self.experts_files) + self.trunk.nbytes + (self.head.nbytes if self.head else 0)


def prepare(source: Path, settings: PackSettings) -> Prepared:
    """Read the source's headers and plan every byte; raises what `pack` raises, but for the disk."""
    checkpoint = read_checkpoint(source)
    found = head_of(checkpoint, settings.head)
    if settings.head is not None and isinstance(found, HeadMissing):
        raise BadRequest(found.why)
    trunk_experts(checkpoint)  # refuses what cannot be streamed before mlx-lm builds the model
    reference = reference_of(checkpoint)
    widen = _widen(settings)
    plans = _plans(checkpoint, found, reference, settings.quantise, widen)
    placed, sizes = place_layers(plans)
    return Prepared(
        checkpoint,
        settings,
        source_fingerprint(checkpoint, settings.head),
        tuple(placed),
        tuple(sizes),
        trunk_dense(checkpoint, reference, settings, widen),
        head_dense(found, settings, widen) if isinstance(found, HeadFound) else None,
        found.why if isinstance(found, HeadMissing) else None,
    )


def _widen(settings: PackSettings) -> bool:
    if settings.scales is None:
        return settings.quantise is not None and not mx.metal.is_available()
    return settings.scales == "float32"


def _plans(
    checkpoint: Checkpoint,
    head: HeadFound | HeadMissing,
    reference: Reference,
    asked: Quantisation | None,
    widen: bool,
) -> list[LayerPlan]:
    experts = head.experts if isinstance(head, HeadFound) else ()
    trunk = trunk_experts(checkpoint)
    if trunk.keys() != reference.switches.keys():
        odd = min(trunk.keys() ^ reference.switches.keys())
        has = "has experts in the files but no SwitchGLU" if odd in trunk else "has a SwitchGLU but no experts on disk"
        raise NotStreamable(f"layer {odd} {has} in mlx-lm's {checkpoint.model_type} model: it cannot be streamed")
    depth = depth_of(checkpoint)
    sources = {**trunk, **{depth + y.layer: y for y in experts}}
    layers = plain_layers(checkpoint, experts)
    plans = [plan_layer(y, sources[y.layer], reference, asked, widen) for y in layers]
    require_effect(plans, asked)
    return plans
