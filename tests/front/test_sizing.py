"""The pool's size: never all of memory, never below the model's minimum, and the minimum is said."""

import json
from pathlib import Path

import pytest

from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_daemon.front.announce import announcement
from mtp_daemon.front.memory import Memory, dense_bytes, kv_bytes_per_token, memory_now
from mtp_daemon.front.sizing import Needs, pool_bytes
from mtp_daemon.front.warm import WarmStart
from mtp_daemon.sizes import PoolRequest
from mtp_loader.pool.layout import make_layout
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

GIB = 1 << 30


def model(experts: int = 512, layers: int = 48, row: int = 442_368) -> Geometry:
    """Qwen3-Next-80B's shape: 1,769,472 bytes an expert."""
    planes = tuple(Plane(f"{p}.weight", "uint32", "uint32", (row // 4,)) for p in ("gate", "up", "down", "x"))
    bank = Bank(0, planes, Quantisation(), Quantisation(), Quantisation(), tuple(range(layers)))
    return Geometry("f", "qwen3_next", True, 1, (bank,), tuple(Layer(i, 0, experts, 10) for i in range(layers)))


@pytest.mark.parametrize("total", [16, 24, 32, 64, 128])
@pytest.mark.parametrize("free", [0.3, 0.6, 0.9])
def test_auto_leaves_room(total: int, free: float) -> None:
    """Auto: dense weights, caches and a reserve come first, and never more than half of the machine (the knee)."""
    memory, needs = Memory(total * GIB, int(total * free * GIB)), Needs(2 * GIB, GIB)
    try:
        size = pool_bytes(PoolRequest(), model(), memory, needs)
    except EnvironmentFailure as error:
        assert "not enough memory" in str(error) and total * free < 8
        return
    assert model().minimum_bytes <= size <= memory.total // 2
    assert size + needs.dense + needs.kv + max(GIB, memory.total * 0.15) <= memory.available


def test_auto_takes_no_more_than_all_experts() -> None:
    small = model(experts=8, layers=2, row=4096)
    assert pool_bytes(PoolRequest(), small, Memory(64 * GIB, 60 * GIB), Needs(0, 0)) == small.expert_bytes


def test_share_and_size() -> None:
    """25% is of all expert bytes; a size is taken as it is, up to all experts."""
    geometry, memory, needs = model(), Memory(16 * GIB, GIB), Needs(0, 0)
    assert pool_bytes(PoolRequest(share=0.25), geometry, memory, needs) == round(geometry.expert_bytes / 4)
    assert pool_bytes(PoolRequest(nbytes=GIB), geometry, memory, needs) == GIB
    assert pool_bytes(PoolRequest(nbytes=1 << 50), geometry, Memory(64 * GIB, GIB), needs) == geometry.expert_bytes


def test_a_size_that_no_memory_holds_is_refused() -> None:
    """A pool that the machine could only swap, and a context whose caches alone fill it, are refused before a start."""
    memory = Memory(16 * GIB, 12 * GIB)
    assert pool_bytes(PoolRequest(nbytes=8 * GIB), model(), memory, Needs(2 * GIB, GIB)) == 8 * GIB
    with pytest.raises(EnvironmentFailure, match="lower --pool or --context"):
        pool_bytes(PoolRequest(nbytes=14 * GIB), model(), memory, Needs(2 * GIB, GIB))
    for asked in (PoolRequest(nbytes=8 * GIB), PoolRequest()):
        with pytest.raises(EnvironmentFailure):
            pool_bytes(asked, model(), memory, Needs(2 * GIB, 12 * GIB))


def test_a_size_one_byte_too_small_does_not_look_large_enough() -> None:
    """That 40 MiB are too small and at least 40 MiB are needed helps nobody."""
    geometry = model(row=1 << 20)
    with pytest.raises(UserError, match=r"\(1 too few\)"):
        pool_bytes(PoolRequest(nbytes=geometry.minimum_bytes - 1), geometry, Memory(GIB, GIB), Needs(0, 0))


def test_too_small_says_the_minimum() -> None:
    """The size that the message recommends is one that works."""
    geometry = model()
    with pytest.raises(UserError) as error:
        pool_bytes(PoolRequest(nbytes=geometry.minimum_bytes - 1), geometry, Memory(GIB, GIB), Needs(0, 0))
    recommended = int(str(error.value).split("--pool ")[1].split("KiB")[0]) << 10
    assert pool_bytes(PoolRequest(nbytes=recommended), geometry, Memory(GIB, GIB), Needs(0, 0)) == recommended
    assert make_layout(geometry, recommended, 1).banks[0].slots >= 10


def test_memory_now_is_plausible() -> None:
    memory = memory_now()
    assert 0 < memory.available <= memory.total


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 4, "full_attention_interval": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 32, "hidden_size": 128}, 2 * 1 * 2 * 32 * 2),
        ({"text_config": {"num_hidden_layers": 3, "layer_types": ["linear_attention", *["full_attention"] * 2],
          "num_attention_heads": 4, "hidden_size": 128, "dtype": "float32"}}, 2 * 2 * 4 * 32 * 4),
        ({"num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 4,
          "hidden_size": 8}, 2 * 2 * 576),
        ({"num_hidden_layers": "many"}, 0),
    ],
)  # fmt: skip
def test_kv_estimate(tmp_path: Path, config: dict[str, object], expected: int) -> None:
    """Bytes a token: attention layers only, key and value, MLA's compressed rows; 0 where the config does not tell."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_bytes_per_token(tmp_path) == expected


def test_dense_estimate(tmp_path: Path) -> None:
    """Packed: the dense shards. Unpacked: what the files hold besides experts."""
    geometry = model(experts=4, layers=2, row=4096)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 200_000)
    assert dense_bytes(tmp_path, geometry) == 200_000
    unpacked = Geometry("f", "m", False, 9, geometry.banks, geometry.layers)
    assert dense_bytes(tmp_path, unpacked) == 200_000 - 8 * 16384


def test_announcement_names_what_it_costs(tmp_path: Path) -> None:
    """Dense, pool, caches, bytes a token, the bound and whether its figures are measured or estimated."""
    geometry = model()
    facts = {"dense_bytes": 2 * GIB, "kv_bytes_per_token": 24_576, "mtp": False, "mtp_why": "no head", "backend": "cpu"}
    text = announcement(tmp_path, geometry, make_layout(geometry, geometry.expert_bytes // 4, 1), facts, 8192, {})
    for part in ("2.00 GiB", "25% of their bytes", "849.3 MB a token", "192.00 MiB at most", "an estimate", "no head"):
        assert part in text
    full = announcement(tmp_path, geometry, make_layout(geometry, geometry.expert_bytes, 1), facts, 8192, {})
    assert "every expert fits" in full
    short = announcement(
        tmp_path, geometry, make_layout(geometry, geometry.expert_bytes, 1), {**facts, "context": 2048}, 8192, {}
    )
    assert "48.00 MiB at most, for 2048 tokens (the model's own limit)" in short


def test_serve_says_how_warm_it_starts(tmp_path: Path) -> None:
    """Where statistics come from or why there are none, how far the pool is, and once when it is filled."""
    geometry = model()
    layout = make_layout(geometry, geometry.expert_bytes // 4, 1)

    def row(facts: dict[str, object]) -> str:
        lines = announcement(tmp_path, geometry, layout, {}, 8192, facts).splitlines()
        return next((line.split("warm  ")[1] for line in lines if "warm  " in line), "")

    taken = {"statistics": "from x.npz, in whatever words", "learned": True, "resident": 9}
    assert row({}) == ""
    assert row({"statistics": "no statistics at x.npz yet", "warm": 1.0}) == "no: no statistics at x.npz yet"
    assert row(taken | {"warm": 0.37}).startswith("37% of what goes into the pool")
    assert row(taken | {"warm": 1.0}).startswith("the pool is filled")
    said: list[str] = []
    warm = WarmStart(said.append)
    for share in (0.0, 0.5, 1.0, 1.0):
        warm.look(taken | {"warm": share})
    assert said == ["warm: 9 experts are in the pool"]
