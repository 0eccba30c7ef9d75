"""A predictor's statistics on disk, so that a service starts warm. Keyed by the checkpoint's fingerprint."""

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from mtp_loader.predict.blend import Predictor

_VERSION = 1


def save(predictor: Predictor, fingerprint: str, path: Path) -> None:
    """Writes beside `path` and renames, so that a reader sees the old file or the new one. Raises OSError."""
    arrays: dict[str, np.ndarray] = {
        "version": np.array(_VERSION),
        "fingerprint": np.array(fingerprint),
        "token_ids": np.array(list(predictor.tokens.rows), dtype=np.int64),
        "token_experts": predictor.tokens.table[list(predictor.tokens.rows.values())],
    }
    for layer, uses in predictor.uses.items():
        arrays[f"uses.{layer}"] = uses
    for layer, counts in predictor.transitions.counts.items():
        arrays[f"transitions.{layer}"] = counts
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(predictor: Predictor, fingerprint: str, path: Path) -> str | None:
    """Fills a fresh predictor from `path`; None when it did, else why not, in a line. A bad file changes nothing."""
    if not path.exists():
        return f"no statistics at {path} yet"
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        return f"statistics in {path} are not readable and are ignored ({error})"
    if stored.get("version", np.array(0)).tolist() != _VERSION:
        return f"statistics in {path} are of another version and are ignored"
    if str(stored.get("fingerprint")) != fingerprint:
        return f"statistics in {path} are of another checkpoint and are ignored"
    if not _fits(predictor, stored):
        return f"statistics in {path} do not have this model's shape and are ignored"
    _take(predictor, stored)
    return None


def _fits(predictor: Predictor, stored: dict[str, np.ndarray]) -> bool:
    table, ids, experts = predictor.tokens.table, stored.get("token_ids"), stored.get("token_experts")
    shapes: dict[str, tuple[int, ...]] = {f"uses.{y}": uses.shape for y, uses in predictor.uses.items()}
    shapes |= {f"transitions.{y}": predictor.transitions.shape(y) for y in predictor.uses}
    return (
        ids is not None
        and experts is not None
        and experts.shape == (len(ids), *table.shape[1:])
        and len(ids) <= len(table)
        and all(array.shape == shapes[name] for name, array in stored.items() if name in shapes)
    )


def _take(predictor: Predictor, stored: dict[str, np.ndarray]) -> None:
    for row, token in enumerate(stored["token_ids"].tolist()):
        predictor.tokens.rows[token] = row
    predictor.tokens.table[: len(stored["token_ids"])] = stored["token_experts"]
    for layer in predictor.uses:
        if (uses := stored.get(f"uses.{layer}")) is not None:
            predictor.uses[layer][:] = uses
        if (counts := stored.get(f"transitions.{layer}")) is not None:
            predictor.transitions.counts[layer] = counts.astype(np.uint16)
