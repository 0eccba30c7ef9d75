"""The packed index is read as hostile, and a store whose files are not as it says is refused."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_loader.errors import DamagedCheckpoint, LoaderError, NotStreamable
from mtp_loader.store import open_source
from mtp_loader.store.index import read_index
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from mtp_loader.store.whole_files import check_whole_files
from support.checkpoints import Head, make_checkpoint
from support.expert_bytes import all_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=6) | st.sampled_from([0, 1, 4096]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index")
    source = make_checkpoint(path / "m", "qwen3_next", quant="mixed", head=Head(quant="q4g64"))
    pack(source, path / "packed", PackSettings(), lambda line: None)
    return path / "packed"


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "store"))


def edit(store: Path, change: Any) -> None:
    index = json.loads((store / "index.json").read_text())
    change(index)
    (store / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("cut", [1, 4096, 10**6])
def test_a_cut_experts_file_is_named_with_its_sizes(store: Path, cut: int) -> None:
    path = store / "experts-00001.bin"
    size = path.stat().st_size
    left = max(size - cut, 0)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DamagedCheckpoint, match=f"experts-00001.bin: has {left} bytes but should have {size}"):
        open_source(store, widen=False)


def test_a_store_without_its_index_is_called_that(store: Path) -> None:
    """Not a checkpoint whose head lacks experts, which is what it looks like."""
    (store / "index.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"index\.json: is missing"):
        open_source(store, widen=False)


def test_a_top_k_other_than_the_configs_is_refused(store: Path) -> None:
    """The engine routes by the config: fewer slots than a token needs would be promised."""

    def fewer(index: Any) -> None:
        index["layers"][1]["top_k"] = 1

    edit(store, fewer)
    with pytest.raises(DamagedCheckpoint, match=r"top-1, but config\.json has top-2"):
        open_source(store, widen=False)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("depth", 0, "depth"), ("depth", 1, "misplaced"), ("depth", 5, "num|layers"), ("depth", 10**30, "depth"),
     ("model_type", "other", "model_type|config.json"), ("options", [], "options")],
)  # fmt: skip
def test_what_an_index_says_of_the_model_is_checked(store: Path, field: str, value: Any, named: str) -> None:
    """Depth numbers the layers of a head that is given apart; both must be those of the config."""
    edit(store, lambda index: index.update({field: value}))
    with pytest.raises(DamagedCheckpoint, match=named):
        open_source(store, widen=False)


@pytest.mark.parametrize("layer", [0, -1])
def test_a_layer_is_of_the_head_or_of_the_trunk(store: Path, layer: int) -> None:
    def other(index: Any) -> None:
        index["layers"][layer]["is_head"] = not index["layers"][layer]["is_head"]

    edit(store, other)
    with pytest.raises(DamagedCheckpoint, match="misplaced"):
        open_source(store, widen=False)


@pytest.mark.parametrize("name", ["experts-00001.bin", "model-dense-00001.safetensors", "mtp-dense.safetensors"])
def test_a_missing_file_is_refused(store: Path, name: str) -> None:
    (store / name).unlink()
    with pytest.raises(DamagedCheckpoint, match=f"{name}: is missing"):
        open_source(store, widen=False)


def test_a_link_cannot_lead_outside(store: Path, tmp_path: Path) -> None:
    (store / "experts-00001.bin").rename(tmp_path / "elsewhere")
    (store / "experts-00001.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedCheckpoint, match="leads out"):
        open_source(store, widen=False)


def first(name: str, value: Any) -> Any:
    return lambda index: index["layers"][0].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        first("offset", 1 << 40),
        first("offset", 8),
        first("offset", -4096),
        first("stride", 0),
        first("stride", 4096),
        first("stride", 20_481),
        first("experts", 9),
        first("experts", 0),
        first("top_k", 0),
        first("top_k", 9),
        first("bank", 9),
        first("file", 99),
        first("layer", 1),
        first("is_head", 1),
        first("crc32", [0] * 7),
        first("crc32", ["a"] * 8),
        lambda i: i["files"][0].update(name="../outside"),
        lambda i: i["files"][0].update(name="/etc/passwd"),
        lambda i: i["files"].append(i["files"][0]),
        lambda i: i["banks"][0]["planes"][0].update(dtype="float8"),
        lambda i: i["banks"][0]["planes"][0].update(name="gate.eval"),
        lambda i: i["banks"][0]["planes"][0].update(shape=[64, -16]),
        lambda i: i["banks"][0]["planes"].pop(0),
        lambda i: i["banks"][0].update(planes=[]),
        lambda i: i.update(layers=[]),
        lambda i: i.update(format="other"),
        lambda i: i.pop("depth"),
    ],
)
def test_an_index_that_lies_is_refused(store: Path, change: Any) -> None:
    edit(store, change)
    with pytest.raises(DamagedCheckpoint):
        read_index(store)


def test_two_layers_cannot_share_bytes(store: Path) -> None:
    def overlap(index: Any) -> None:
        index["layers"][3]["offset"] = index["layers"][0]["offset"]

    edit(store, overlap)
    with pytest.raises(DamagedCheckpoint, match="overlaps"):
        read_index(store)


def test_another_version_says_to_pack_again(store: Path) -> None:
    edit(store, lambda i: i.update(version=99))
    with pytest.raises(NotStreamable, match="pack the model again"):
        read_index(store)


def test_the_fingerprint_is_the_bytes(store: Path, packed: Path, tmp_path: Path) -> None:
    assert read_index(store).fingerprint == read_index(packed).fingerprint
    other = make_checkpoint(tmp_path / "o", "qwen3_next", quant="mixed", head=Head(quant="q4g64"), seed=5)
    pack(other, tmp_path / "other", PackSettings(), lambda line: None)
    assert read_index(tmp_path / "other").banks == read_index(packed).banks
    assert read_index(tmp_path / "other").fingerprint != read_index(packed).fingerprint


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fuzzed_indexes_are_refused_or_read_inside_the_files(packed: Path, tmp_path: Path, data: st.DataObject) -> None:
    """One value anywhere replaced by anything: a clean refusal, or a source whose every extent can be read."""
    store = tmp_path / "store"
    if not store.exists():
        shutil.copytree(packed, store)
    index = copy.deepcopy(json.loads((packed / "index.json").read_text()))
    at: Any = index
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(VALUES)
    (store / "index.json").write_text(json.dumps(index))
    try:
        source = open_source(store, widen=True)
    except LoaderError:
        return
    all_bytes(source)


@pytest.mark.parametrize("name", ["model-dense-00001.safetensors", "mtp-dense.safetensors", "config.json"])
def test_a_changed_byte_outside_the_experts_is_named(store: Path, name: str) -> None:
    """Of the same size, so that nothing else shows it: dense weights that changed would give wrong tokens silently."""
    check_whole_files(store)
    data = bytearray((store / name).read_bytes())
    data[-1] ^= 1
    (store / name).write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=name):
        check_whole_files(store)
