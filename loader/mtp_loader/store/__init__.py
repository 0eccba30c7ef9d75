"""Checkpoints on disk. The reading side never imports MLX; only packing does, and only when it runs."""

from mtp_loader.store.head import HeadFound, HeadMissing, find_head
from mtp_loader.store.open import Source, open_source
from mtp_loader.store.resolve import resolve_model
from mtp_loader.store.source import ExpertSource, Extent

__all__ = [
    "ExpertSource",
    "Extent",
    "HeadFound",
    "HeadMissing",
    "Source",
    "find_head",
    "open_source",
    "resolve_model",
]
