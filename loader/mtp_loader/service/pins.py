"""Which experts to hold: named in a file by the user, or as they were set last, which the state directory remembers."""

import json
import logging
import os
from pathlib import Path

from mtp_loader.errors import BadRequest
from mtp_loader.service.settings import LoaderSettings
from mtp_protocol.geometry import Geometry
from mtp_protocol.whole_file import write_whole

log = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
Experts = tuple[tuple[int, int], ...]
"""(layer, expert) pairs."""


class Pins:
    """Owner of the wish; how much of it the pool has room for is the slot table's business.

    Where settings name a file, that is held at every start. Otherwise what was set last is, this loader's or an earlier
    one's; a remembered file that is not readable or of another checkpoint is ignored with a line in the log.
    """

    def __init__(self, settings: LoaderSettings, geometry: Geometry) -> None:
        self._fingerprint = geometry.fingerprint
        self._path: Path | None = None
        if settings.state_dir is not None:
            self._path = settings.state_dir / f"pins-{geometry.fingerprint[:16]}.json"
        self.experts: Experts = ()
        if settings.pins is not None:
            self.experts = read_pins(settings.pins, geometry)
        elif self._path is not None and os.path.exists(self._path):  # False too where it may not be looked at
            try:
                self.experts = read_pins(self._path, geometry)
            except BadRequest as error:
                log.warning("nothing is pinned: %s", error)
            else:
                log.info("%d experts are to be held, as %s says", len(self.experts), self._path)

    def set(self, experts: Experts) -> None:
        """From now on, and at the next start. A disk that is full costs the latter, and a line in the log."""
        self.experts = experts
        if self._path is None:
            return
        try:
            if not experts:
                self._path.unlink(missing_ok=True)
                return
            write_whole(self._path, json.dumps({"fingerprint": self._fingerprint, "experts": experts}).encode())
        except OSError as error:
            log.error("the pins are not remembered: %s", error)


def read_pins(path: Path, geometry: Geometry) -> Experts:
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
