"""Which files make up a checkpoint, with every name and link held inside its directory."""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mtp_loader.errors import BadRequest, DamagedCheckpoint, NoSuchModel
from mtp_loader.store.safetensors import Header, Tensor, parse_json, read_header

MAX_JSON_BYTES = 64 << 20
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
_TOWERS = ("vision_tower.", "model.visual.", "visual.", "model.vision_tower.", "audio_tower.", "multi_modal_projector.")


@dataclass(frozen=True)
class Checkpoint:
    """A directory's config and the headers of its safetensors files.

    `headers` are the files that mlx-lm loads (`model*.safetensors`) and those the index names; `others` the rest,
    where an MTP head may lie.
    """

    path: Path
    config: dict[str, Any]
    headers: tuple[Header, ...]
    others: tuple[Header, ...]

    @property
    def model_type(self) -> str:
        """The config's model_type, "" where it has none."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def sizes(self) -> dict[str, Any]:
        """See `model_sizes`."""
        return model_sizes(self.config)

    def size(self, *names: str) -> int | None:
        """The first of `names` that the language model's config gives as a whole number."""
        return whole_number(self.sizes, *names)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of `headers` by name; raises DamagedCheckpoint where two files hold the same name."""
        return merge(self.headers)


def model_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model (its `text_config` where it is nested)."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def whole_number(sizes: dict[str, Any], *names: str) -> int | None:
    """The first of `names` that is a whole number there."""
    return next((sizes[name] for name in names if type(sizes.get(name)) is int), None)


def merge(headers: tuple[Header, ...]) -> dict[str, Tensor]:
    """The tensors of several files by name; one name in two files is an error, since readers would disagree."""
    tensors: dict[str, Tensor] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise DamagedCheckpoint(header.path, f"tensor {name!r} is also in {tensors[name].path.name}")
            tensors[name] = tensor
    return tensors


def is_tower(name: str) -> bool:
    """Whether a tensor belongs to a vision or audio tower, which mlx-lm's text models drop."""
    return name.startswith(_TOWERS)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the config and every header in `path`.

    Raises NoSuchModel where there is no such directory, DamagedCheckpoint where a file is missing, cut, lies about
    itself or lies outside the directory.
    """
    if not path.is_dir():
        raise NoSuchModel(f"{path}: no such directory")
    config = read_json(inside(path, "config.json"), "the config")
    found = sorted(p.name for p in path.glob("*.safetensors"))
    named = _indexed(path)
    loaded = [n for n in found if n.startswith("model")]
    loaded += sorted(set(named.values()) - set(loaded))
    if not loaded:
        raise DamagedCheckpoint(path, "has no model*.safetensors file")
    _complete(path, loaded)
    headers = tuple(read_header(inside(path, name)) for name in loaded)
    by_file = {h.path.name: h for h in headers}
    for tensor, file in named.items():
        if tensor not in by_file[file].tensors:
            raise DamagedCheckpoint(path / file, f"has no tensor {tensor!r}, though {_INDEX} says so")
    others = tuple(read_header(inside(path, name)) for name in found if name not in by_file)
    return Checkpoint(path, config, headers, others)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object of bounded size; raises DamagedCheckpoint."""
    return parse_json(path, read_bytes(path, what), what)


def read_bytes(path: Path, what: str) -> bytes:
    """A small file's bytes; raises DamagedCheckpoint where it is missing, unreadable or larger than such a file is."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise DamagedCheckpoint(path, f"has {size} bytes; {what} may have {MAX_JSON_BYTES}")
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpoint(path, "is missing") from None
    except OSError as error:
        raise DamagedCheckpoint(path, f"cannot be read: {error.strerror or error}") from error


def inside(directory: Path, name: str) -> Path:
    """`directory / name`, when it is a plain name and does not lead out through a symbolic link.

    The Hugging Face cache's snapshots are links to `../../blobs`: a link may lead anywhere in the model's own folder
    of the cache, and nowhere else. Raises DamagedCheckpoint.
    """
    if not name or name != os.path.basename(name) or name in (".", "..") or "\\" in name or "\0" in name:
        raise DamagedCheckpoint(directory, f"names a file outside itself: {name[:120]!r}")
    path = directory / name
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in _roots(directory)):
        raise DamagedCheckpoint(path, f"is a link that leads out of the model's directory, to {real}")
    return path


def _roots(directory: Path) -> list[Path]:
    home = Path(os.path.realpath(directory))
    roots = [home]
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--"):
        roots.append(home.parent.parent)
    return roots


def _indexed(path: Path) -> dict[str, str]:
    """The index's weight_map, every file name checked; empty where there is no index."""
    if not os.path.lexists(path / _INDEX):
        return {}
    index = inside(path, _INDEX)
    weight_map = read_json(index, "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise DamagedCheckpoint(index, "has no weight_map of tensor names to files")
    for file in set(weight_map.values()):
        if not file.endswith(".safetensors"):
            raise DamagedCheckpoint(index, f"names {file[:120]!r}, which is no safetensors file")
        if not inside(path, file).exists():
            raise DamagedCheckpoint(path / file, f"is missing, though {_INDEX} names it")
    return weight_map


def _complete(path: Path, names: list[str]) -> None:
    """Raise DamagedCheckpoint where names like model-00002-of-00003 show that a shard is gone."""
    for name in names:
        match = _SHARD.fullmatch(name)
        if not match:
            continue
        stem, width, total = match[1], len(match[2]), match[3]
        if int(total) > 100_000:
            raise DamagedCheckpoint(path / name, f"claims to be one of {total} shards")
        for i in range(1, int(total) + 1):
            wanted = f"{stem}-{i:0{width}}-of-{total}.safetensors"
            if wanted not in names:
                raise DamagedCheckpoint(path / wanted, f"is missing, though {name} is one of {total} shards")


def sidecar_headers(path: Path) -> tuple[Header, ...]:
    """The headers of a head's own file, or of every safetensors file in its directory; raises BadRequest if none."""
    if path.is_file():
        return (read_header(path),)
    names = sorted(p.name for p in path.glob("*.safetensors")) if path.is_dir() else []
    if not names:
        raise BadRequest(f"{path}: neither a safetensors file nor a directory that holds one")
    return tuple(read_header(inside(path, name)) for name in names)
