"""Which files a checkpoint consists of: nothing outside its directory, nothing missing, nothing twice."""

import json
import shutil
from pathlib import Path

import pytest

from mtp_loader.errors import DamagedCheckpoint, LoaderError, NoSuchModel
from mtp_loader.store import open_source
from support.checkpoints import make_checkpoint
from support.expert_bytes import all_bytes

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model", "qwen3_moe", quant="q4g64", shards=3)


def point_index(path: Path, file: str) -> None:
    index = json.loads((path / INDEX).read_text())
    index["weight_map"][next(iter(index["weight_map"]))] = file
    (path / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "x\0.safetensors", "a\\b"]
)
def test_an_index_cannot_name_a_file_outside(sharded: Path, file: str) -> None:
    shutil.copy(sharded / "model-00001-of-00003.safetensors", sharded.parent / "secret.safetensors")
    point_index(sharded, file)
    with pytest.raises(DamagedCheckpoint):
        open_source(sharded, widen=False)


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json", INDEX])
def test_a_link_cannot_lead_outside(sharded: Path, name: str) -> None:
    (sharded / name).rename(sharded.parent / "elsewhere")
    (sharded / name).symlink_to(sharded.parent / "elsewhere")
    with pytest.raises(DamagedCheckpoint, match="leads out"):
        open_source(sharded, widen=False)


def test_links_of_the_hugging_face_cache_are_followed(sharded: Path, tmp_path: Path) -> None:
    """A snapshot's files are links to ../../blobs: fine within the model's own folder of the cache, only there."""
    repository = tmp_path / "hub" / "models--a--b"
    snapshot, blobs = repository / "snapshots" / "123", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(sharded.iterdir())):
        shutil.copy(file, blobs / str(i))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(i))
    assert all_bytes(open_source(snapshot, widen=False)) == all_bytes(open_source(sharded, widen=False))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(sharded / "config.json")
    with pytest.raises(DamagedCheckpoint, match="leads out"):
        open_source(snapshot, widen=False)


@pytest.mark.parametrize("keep_index", [True, False])
def test_a_missing_shard_is_named(sharded: Path, keep_index: bool) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    if not keep_index:
        (sharded / INDEX).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"model-00002-of-00003\.safetensors: is missing"):
        open_source(sharded, widen=False)


@pytest.mark.parametrize("cut", ["byte", "expert", "half"])
def test_a_cut_shard_is_named_with_its_sizes(sharded: Path, cut: str) -> None:
    path = sharded / "model-00003-of-00003.safetensors"
    size = path.stat().st_size
    layer = open_source(sharded, widen=False).geometry.banks[0]
    left = {"byte": size - 1, "expert": size - layer.source_bytes, "half": size // 2}[cut]
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DamagedCheckpoint, match=f"{path.name}: has {left} bytes but should have {size}"):
        open_source(sharded, widen=False)


def test_a_tensor_the_index_promises_must_be_there(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.phantom.weight"] = "model-00001-of-00003.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(DamagedCheckpoint, match=r"model\.phantom\.weight"):
        open_source(sharded, widen=False)


def test_a_tensor_in_two_files_is_ambiguous(sharded: Path) -> None:
    shutil.copy(sharded / "model-00001-of-00003.safetensors", sharded / "model-again.safetensors")
    with pytest.raises(DamagedCheckpoint, match="is also in"):
        open_source(sharded, widen=False)


@pytest.mark.parametrize(
    "config", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff", b'{"model_type": 3}', b'{"text_config": []}']
)
def test_a_config_that_is_none_is_refused(sharded: Path, config: bytes) -> None:
    (sharded / "config.json").write_bytes(config)
    with pytest.raises(LoaderError):
        open_source(sharded, widen=False)


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(NoSuchModel, match="no such directory"):
        open_source(tmp_path / "gone", widen=False)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match="no model"):
        open_source(tmp_path, widen=False)
