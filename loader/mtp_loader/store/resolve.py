"""A model's name to its directory. Never downloads: only `mtp-loader fetch` does."""

import os
import re
from pathlib import Path

from mtp_loader.errors import NoSuchModel

DEMO = "demo"  # the model that is shipped with mtpd
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*")  # in practice a commit's 40 hex digits


def hub_cache() -> Path:
    """Where Hugging Face's library keeps what it downloaded, by its own environment variables."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def resolve_model(name: str) -> Path:
    """The directory of a model: a path, a Hugging Face id that is in the local cache, or "demo".

    Raises NoSuchModel; for a directory the text says what it lacks, for an id that is not cached it holds the command
    that fetches it. A directory called demo goes before the shipped model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.exists():
        raise NoSuchModel(f"{name} is a file; give the directory that holds the model's config.json")
    if name == DEMO:
        shipped = Path(__file__).parents[1] / "demo_model"
        if not shipped.is_dir():
            raise NoSuchModel(f"the demo model is not in this installation ({shipped} is missing): give a model")
        return shipped
    if not HUB_ID.fullmatch(name) or name.startswith((".", "/", "~")):
        raise NoSuchModel(f"{name}: no such directory, and not a Hugging Face id (owner/name) either")
    snapshot = _cached(hub_cache() / f"models--{name.replace('/', '--')}")
    if snapshot is None:
        raise NoSuchModel(
            f"{name} is neither a directory nor in the local cache; fetch it with: mtp-loader fetch {name}"
        )
    return snapshot


def _checked(path: Path) -> Path:
    """A directory that can hold a model, by a name that everything that reads it can take."""
    if not any((path / name).exists() for name in ("config.json", "index.json")):
        raise NoSuchModel(f"{path} holds no model: there is neither a config.json nor a packed store's index.json")
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path.resolve()).decode(errors="replace")
        raise NoSuchModel(f"{shown}: MLX opens no file by a name that is not UTF-8; rename the directory") from None
    return path


def _cached(repository: Path) -> Path | None:
    reference = repository / "refs" / "main"
    if not reference.is_file():
        return None
    revision = reference.read_text().strip()
    snapshot = repository / "snapshots" / revision
    if not _REVISION.fullmatch(revision) or not (snapshot / "config.json").is_file():
        return None
    return snapshot
