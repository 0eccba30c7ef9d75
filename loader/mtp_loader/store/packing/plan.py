"""What a pack will write: each layer's records, how they are made from the source's planes, and where they go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mtp_loader.errors import BadRequest
from mtp_loader.store.experts import ExpertLayer
from mtp_loader.store.index import PAGE
from mtp_loader.store.layers import MoeLayer
from mtp_loader.store.packing.model import Reference
from mtp_loader.store.planes import PlaneSource
from mtp_protocol.geometry import PROJECTIONS, Dtype, Plane, Quantisation

MAX_FILE_BYTES = 4 << 30
Step = Literal["copy", "widen", "quantise"]


@dataclass(frozen=True)
class Recipe:
    """How target planes come from one source plane: copied, widened to float32, or quantised into several."""

    step: Step
    source: PlaneSource
    targets: tuple[Plane, ...]
    settings: Quantisation | None = None


@dataclass(frozen=True)
class LayerPlan:
    """One layer's records: expert e goes to `offset + e * stride` of experts file number `file`."""

    layer: MoeLayer
    recipes: tuple[Recipe, ...]
    planes: tuple[Plane, ...]
    quantisation: tuple[Quantisation, Quantisation, Quantisation]
    file: int = 0
    offset: int = 0

    @property
    def record_bytes(self) -> int:
        """Bytes of a record without its padding."""
        return sum(p.source_bytes for p in self.planes)

    @property
    def stride(self) -> int:
        """Bytes from one record to the next, whole pages."""
        return -(-self.record_bytes // PAGE) * PAGE

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.stride * self.layer.experts

    @property
    def is_copy(self) -> bool:
        """Whether every plane is copied as it is, so that nothing passes through NumPy or MLX."""
        return all(r.step == "copy" and not r.source.interleaved for r in self.recipes)

    def place(self, plane: Plane) -> int:
        """The offset of a plane's row in a record."""
        at = 0
        for other in self.planes:
            if other.name == plane.name:
                return at
            at += other.source_bytes
        raise KeyError(plane.name)


def plan_layer(
    layer: MoeLayer, source: ExpertLayer, reference: Reference, asked: Quantisation | None, widen: bool
) -> LayerPlan:
    """The plan of one layer, its place left open. `widen`: scales, biases and what is quantised become float32."""
    recipes: list[Recipe] = []
    found: list[Quantisation] = []
    for projection, have in zip(PROJECTIONS, layer.quantisation, strict=True):
        planes = [p for p in source.planes if p.name.startswith(f"{projection}.")]
        settings = None
        if asked is not None and have.mode == "none":
            settings = _settings(layer, projection, planes, reference, asked)
        found.append(settings or have)
        for plane in planes:
            recipes.append(_recipe(plane, settings, widen and (settings or have).mode != "none"))
    planes_made = tuple(t for r in recipes for t in r.targets)
    gate, up, down = found
    return LayerPlan(layer, tuple(recipes), planes_made, (gate, up, down))


def _settings(
    layer: MoeLayer, projection: str, planes: Sequence[PlaneSource], reference: Reference, asked: Quantisation
) -> Quantisation | None:
    inputs = next(p.shape[-1] for p in planes if p.name.endswith(".weight"))
    if layer.is_head:  # mlx-lm has no such module; its rules for experts are the trunk's
        return None if inputs % asked.group_size else asked
    return reference.quantisation(f"{reference.switches[layer.layer]}.{projection}_proj", asked, inputs)


def _recipe(plane: PlaneSource, settings: Quantisation | None, widen: bool) -> Recipe:
    projection, component = plane.name.split(".")
    here = Plane(plane.name, plane.dtype, plane.dtype, plane.shape)
    if component == "weight" and settings is not None:
        return Recipe("quantise", plane, _quantised_planes(projection, plane, settings, widen), settings)
    if component != "weight" and widen and plane.dtype in ("bfloat16", "float16"):
        return Recipe("widen", plane, (replace(here, dtype="float32", source_dtype="float32"),))
    return Recipe("copy", plane, (here,))


def _quantised_planes(projection: str, plane: PlaneSource, q: Quantisation, widen: bool) -> tuple[Plane, ...]:
    rows, inputs = plane.shape
    groups = (rows, inputs // q.group_size)
    packed = Plane(f"{projection}.weight", "uint32", "uint32", (rows, inputs * q.bits // 32))
    if q.mode != "affine":
        return (packed, Plane(f"{projection}.scales", "uint8", "uint8", groups))
    kind: Dtype = "float32" if widen else plane.dtype
    return (packed, *(Plane(f"{projection}.{c}", kind, kind, groups) for c in ("scales", "biases")))


def place_layers(plans: Sequence[LayerPlan]) -> tuple[list[LayerPlan], list[int]]:
    """The plans with their places, and the size of each experts file. A layer never spans two files."""
    placed: list[LayerPlan] = []
    sizes = [0]
    for plan in plans:
        if sizes[-1] and sizes[-1] + plan.nbytes > MAX_FILE_BYTES:
            sizes.append(0)
        placed.append(replace(plan, file=len(sizes) - 1, offset=sizes[-1]))
        sizes[-1] += plan.nbytes
    return placed, sizes


def require_effect(plans: Sequence[LayerPlan], asked: Quantisation | None) -> None:
    """Raise BadRequest where quantising was asked for and no expert can be: the user expects a smaller store."""
    if asked is None or any(r.step == "quantise" for p in plans for r in p.recipes):
        return
    have = plans[0].quantisation[0]
    if have.mode != "none":
        raise BadRequest(
            f"the experts are already quantised ({have.mode}, {have.bits} bits, groups of {have.group_size}); "
            "leave out --q-bits, --q-group and --q-mode"
        )
    raise BadRequest(
        f"no expert's weights can be quantised in groups of {asked.group_size}; choose a smaller --q-group"
    )


def chunk_experts(plan: LayerPlan, budget: int) -> int:
    """How many experts to hold in memory at once: `budget` bytes of source and of records, at least one expert."""
    source = sum(r.source.nbytes * (r.source.parts if r.source.interleaved else 1) for r in plan.recipes)
    return max(1, min(plan.layer.experts, budget // max(source, plan.stride)))
