"""The file that says which experts to hold from the start."""

import json
import logging
from pathlib import Path

from mtp_loader.errors import BadRequest
from mtp_protocol.geometry import Geometry

log = logging.getLogger(__name__)

MAX_BYTES = 16 << 20


def read_pins(path: Path, geometry: Geometry) -> tuple[tuple[int, int], ...]:
    """The (layer, expert) pairs of `{"fingerprint": …, "experts": [[layer, expert], …]}`.

    A file made for another checkpoint is ignored with a line in the log. Raises BadRequest, naming the file, for one
    that is none.
    """
    try:
        with open(path, "rb") as file:
            given = json.loads(file.read(MAX_BYTES))
        pairs = tuple((layer, expert) for layer, expert in given["experts"])
        fingerprint = given["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{path} names no experts to hold: {error}") from None
    if not all(type(n) is int for pair in pairs for n in pair):
        raise BadRequest(f"{path}: experts are pairs of whole numbers, [layer, expert]")
    if fingerprint != geometry.fingerprint:
        log.warning("%s was made for another checkpoint; nothing is pinned", path)
        return ()
    return pairs
