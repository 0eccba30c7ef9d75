"""A predictor's statistics on disk, so that a service starts warm. Keyed by the checkpoint's fingerprint.

A file stays below 1 MB for any model: of the token table the tokens fed last are kept, of the transitions each
expert's most frequent followers, as many as the budgets allow. Small models lose nothing.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtp_loader.predict.blend import Predictor
from mtp_protocol.whole_file import write_whole

_VERSION = 2
_TOKENS_BYTES = _FOLLOWERS_BYTES = 384 << 10
_Arrays = dict[str, np.ndarray]


def save(predictor: Predictor, fingerprint: str, path: Path) -> None:
    """Raises OSError."""
    arrays: _Arrays = {"version": np.array(_VERSION), "fingerprint": np.array(fingerprint)}
    arrays |= {f"uses.{layer}": uses for layer, uses in predictor.uses.items()}
    arrays |= _tokens(predictor) | _followers(predictor)
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_whole(path, content.getvalue())


def load(predictor: Predictor, fingerprint: str, path: Path) -> str | None:
    """Fills a fresh predictor from `path`; None when it did, else why not, in a line. A bad file changes nothing."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
    except FileNotFoundError:
        return f"no statistics at {path} yet"
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


def _tokens(predictor: Predictor) -> _Arrays:
    """`token_ids` [n] and `token_experts` [n, layers, top_k], the token fed last at the end."""
    rows, table = predictor.tokens.rows, predictor.tokens.table
    kept = predictor.tokens.fed[-max(_TOKENS_BYTES // max(table[:1].nbytes, 1), 1) :]
    return {"token_ids": np.array(kept, dtype=np.int64), "token_experts": table[[rows[token] for token in kept]]}


def _followers(predictor: Predictor) -> _Arrays:
    """By layer, for each expert of the layer before: `followers.N` and `counts.N`, both [experts before, n]."""
    counts = predictor.transitions.counts
    room = _FOLLOWERS_BYTES // max(sum(len(table) for table in counts.values()) * 2 * np.dtype(np.uint16).itemsize, 1)
    arrays: _Arrays = {}
    for layer, table in counts.items():
        n = min(max(room, 1), table.shape[1])
        best = np.argpartition(table, -n, axis=1)[:, -n:]
        arrays[f"followers.{layer}"] = best.astype(np.uint16)
        arrays[f"counts.{layer}"] = np.take_along_axis(table, best, axis=1)
    return arrays


def _fits(predictor: Predictor, stored: _Arrays) -> bool:
    table, ids, experts = predictor.tokens.table, stored.get("token_ids"), stored.get("token_experts")
    uses = all(stored[f"uses.{y}"].shape == u.shape for y, u in predictor.uses.items() if f"uses.{y}" in stored)
    followers = all(_followers_fit(predictor, stored, y) for y in predictor.uses if f"followers.{y}" in stored)
    tokens = (
        ids is not None
        and experts is not None
        and experts.shape == (len(ids), *table.shape[1:])
        and len(ids) <= len(table)
    )
    return tokens and uses and followers


def _followers_fit(predictor: Predictor, stored: _Arrays, layer: int) -> bool:
    before, experts = predictor.transitions.shape(layer)
    followers: NDArray[np.uint16] = stored[f"followers.{layer}"]
    counts = stored.get(f"counts.{layer}")
    fits = counts is not None and counts.shape == followers.shape and len(followers) == before
    return fits and bool((followers < experts).all())


def _take(predictor: Predictor, stored: _Arrays) -> None:
    predictor.tokens.restore(stored["token_ids"].tolist(), stored["token_experts"])
    for layer in predictor.uses:
        if (uses := stored.get(f"uses.{layer}")) is not None:
            predictor.uses[layer][:] = uses
        if (followers := stored.get(f"followers.{layer}")) is not None:
            counts = np.zeros(predictor.transitions.shape(layer), dtype=np.uint16)
            np.put_along_axis(counts, followers.astype(np.intp), stored[f"counts.{layer}"], axis=1)
            predictor.transitions.counts[layer] = counts
