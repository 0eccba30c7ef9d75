"""The figures of `mtp-bench stream`: one cell a pool share, page cache and disk. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtp_daemon.bench.figures import Spread, decode_bound, paired_ratio, table
from mtp_daemon.bench.resident import Answer
from mtp_daemon.bench.serving import Served
from mtp_loader.chart import Axis, Chart


@dataclass(frozen=True)
class Where:
    """`share` of the experts in percent. `cache`: warm, cold, or slowed (page cache warm, the reader slowed to `gbps`,
    chosen so that a token's reads take `ratio` times its compute, where that is given).
    """

    share: int
    cache: str
    gbps: float | None = None
    ratio: float | None = None

    @property
    def name(self) -> str:
        if self.gbps is None:
            return f"{self.share} %, {self.cache}"
        how = f", reads {self.ratio:g}x compute" if self.ratio is not None else ""
        return f"{self.share} %, {self.gbps:.3g} GB/s{how}"


@dataclass(frozen=True)
class Memory:
    """Bytes: engine and loader together at their peak, and what of it is neither pool nor dense weights."""

    peak: int
    beyond: int


@dataclass(frozen=True)
class Cell:
    """Paired runs of the service and of mlx-lm resident at one place."""

    where: Where
    ratio: Spread
    prefill_ratio: Spread
    tok_per_s: Spread
    resident_tok_per_s: Spread
    compute_s: float
    bound_tok_per_s: float
    of_bound: float
    hit_rate: float
    bytes_per_token: float
    prompt_bytes: float
    stall_s_per_token: float
    memory: Memory
    exact: bool


def cell(where: Where, served: Sequence[Served], reference: Sequence[Answer], bandwidth: float, memory: Memory) -> Cell:
    """`served[i]` and `reference[i]` ran one after the other. `bandwidth`: bytes a second that plain threads get."""
    compute_s = Spread.of([r.decode_s / (len(r.ids) - 1) for r in reference]).median
    bytes_per_token = Spread.of([s.stats["decode_bytes_read"] / (len(s.ids) - 1) for s in served]).median
    bound = decode_bound(compute_s, bytes_per_token, bandwidth)
    speeds = [s.stats["tok_per_s"] for s in served]
    return Cell(
        where=where,
        ratio=paired_ratio(speeds, [r.tok_per_s for r in reference]),
        prefill_ratio=paired_ratio([r.prefill_s for r in reference], [s.stats["ttft_s"] for s in served]),
        tok_per_s=Spread.of(speeds),
        resident_tok_per_s=Spread.of([r.tok_per_s for r in reference]),
        compute_s=compute_s,
        bound_tok_per_s=bound,
        of_bound=Spread.of(speeds).median / bound,
        hit_rate=Spread.of([s.hit_rate for s in served]).median,
        bytes_per_token=bytes_per_token,
        prompt_bytes=Spread.of([s.stats["bytes_read"] - s.stats["decode_bytes_read"] for s in served]).median,
        stall_s_per_token=Spread.of([s.stats["decode_stall_s"] / (len(s.ids) - 1) for s in served]).median,
        memory=memory,
        exact=all(s.ids == r.ids for s, r in zip(served, reference, strict=True)),
    )


def gbps_for(ratio: float, compute_s: float, bytes_per_token: float) -> float:
    """The disk, in GB/s, on which a token's reads take `ratio` times its compute."""
    return bytes_per_token / (ratio * compute_s) / 1e9


def text(cells: Sequence[Cell]) -> str:
    header = ["pool, page cache or disk", "of resident", "of bound", "tok/s", "resident tok/s", "prefill of resident",
              "hit rate", "MB a token", "stall ms a token", "prompt MB",
              "peak MB", "beyond pool, dense", "exact"]  # fmt: skip
    return table(header, [_row(c) for c in cells])


def _row(c: Cell) -> list[str]:
    return [
        c.where.name,
        c.ratio.text(3),
        f"{c.of_bound:.2f}",
        c.tok_per_s.text(),
        c.resident_tok_per_s.text(),
        c.prefill_ratio.text(2),
        f"{c.hit_rate:.1%}",
        f"{c.bytes_per_token / 1e6:.1f}",
        f"{c.stall_s_per_token * 1e3:.1f}",
        f"{c.prompt_bytes / 1e6:.1f}",
        f"{c.memory.peak / 1e6:.0f}",
        f"{c.memory.beyond / 1e6:.0f}",
        "yes" if c.exact else "NO",
    ]


def speed_chart(cells: Sequence[Cell], peers: Mapping[str, Sequence[tuple[float, float]]]) -> Chart:
    """Tokens a second over pool share: a line a page cache, mlx-lm's own beside them, and the peers'.

    Cells are minutes apart and the machine drifts: each is drawn as its share of mlx-lm's speed beside it, times that
    speed's median over all cells.
    """
    resident = Spread.of([c.resident_tok_per_s.median for c in cells]).median
    lines: dict[str, list[tuple[float, float]]] = {}
    for c in sorted(cells, key=lambda c: c.where.share):
        if c.where.gbps is None:
            steady = resident / c.resident_tok_per_s.median
            lines.setdefault(f"mtpd, {c.where.cache}", []).append((c.where.share, c.ratio.median * resident))
            lines.setdefault(f"bound, {c.where.cache}", []).append((c.where.share, c.bound_tok_per_s * steady))
    lines["mlx-lm, all resident"] = [(share, resident) for share in sorted({c.where.share for c in cells})]
    x, y = Axis("pool, share of all experts", " %"), Axis("tokens a second")
    return Chart("Decoding by pool share", x, y, {**lines, **peers})


def stall_chart(cells: Sequence[Cell]) -> Chart:
    """Stall a token over disk speed, a line a pool share; only slowed disks have a speed that is known."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for c in sorted(cells, key=lambda c: c.where.gbps or 0.0):
        if c.where.gbps is not None:
            lines.setdefault(f"pool {c.where.share} %", []).append((c.where.gbps, c.stall_s_per_token * 1e3))
    return Chart("Waiting for experts by disk speed", Axis("disk", " GB/s"), Axis("stall a token", " ms"), lines)
