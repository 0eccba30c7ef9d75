"""Edits checkpoints on disk: renames, drops or replaces tensors, or changes the config."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

Edit = Callable[[dict[str, mx.array]], dict[str, mx.array]]


def edit_tensors(directory: Path, edit: Edit, file: str = "model.safetensors") -> None:
    """Rewrite a file's tensors and drop the index, which would speak of the old ones."""
    weights = mx.load(str(directory / file))
    assert isinstance(weights, dict)
    mx.eval(list(weights.values()))
    changed = edit(dict(weights))
    (directory / file).unlink()  # MLX may still map the old file
    mx.save_safetensors(str(directory / file), changed)
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)


def drop(directory: Path, *parts: str, file: str = "model.safetensors") -> None:
    """Drop every tensor whose name contains one of `parts`."""
    edit_tensors(directory, lambda w: {n: v for n, v in w.items() if not any(p in n for p in parts)}, file)


def edit_config(directory: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def retype(path: Path, name: str, dtype: str) -> None:
    """Change a tensor's type name in a file's header to another of the same length on disk."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header[name]["dtype"] = dtype
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
