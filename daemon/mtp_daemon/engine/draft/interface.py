"""What every way to draft is given, and what it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mtp_daemon.engine.decode.host import host_ints
from mtp_daemon.engine.mtp.track import HeadTrack
from mtp_daemon.engine.sampling import Chooser


@dataclass(frozen=True)
class Path:
    """Drafted tokens in order, each with the law it was drawn from (None: chosen without chance).

    `shares`: how many of the first path's leading tokens it has; what follows them is a branch.
    """

    tokens: tuple[int, ...]
    laws: tuple[mx.array | None, ...]
    shares: int = 0


class Candidates:
    """Drafted paths of one length (1 at least), the first of them the likeliest.

    `known`: each path's tokens, but for a last one in `last` [paths] that the host has not read yet: `fed` builds on it
    unread, `paths` reads it. `together`: all paths are verified side by side; else the first is, and the others are
    branches in reserve. `top`: the head's three likeliest tokens [3] at the first position, where a probe asked.
    """

    def __init__(
        self,
        known: Sequence[Sequence[int]],
        last: mx.array | None,
        laws: Sequence[Sequence[mx.array | None]],
        shares: Sequence[int],
        *,
        together: bool = False,
        top: mx.array | None = None,
    ) -> None:
        self._known, self._last, self._laws, self._shares = known, last, laws, shares
        self._paths: tuple[Path, ...] | None = None
        self.together = together
        self.top = top
        self.length = len(known[0]) + (last is not None)
        self.rows = len(known) if together else 1

    def fed(self) -> mx.array:
        """The drafted ids that the verify feeds, [rows, length] int32."""
        parts = []
        if self._known[0]:
            parts.append(mx.array([list(path) for path in self._known[: self.rows]], dtype=mx.int32))
        if self._last is not None:
            parts.append(self._last[: self.rows, None].astype(mx.int32))
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)

    def paths(self) -> tuple[Path, ...]:
        """Every path, read by the host."""
        if self._paths is None:
            last = [] if self._last is None else [(token,) for token in host_ints(self._last)]
            ends: list[tuple[int, ...]] = [*last] or [()] * len(self._known)
            self._paths = tuple(
                Path((*known, *end), tuple(laws), shares)
                for known, end, laws, shares in zip(self._known, ends, self._laws, self._shares, strict=True)
            )
        return self._paths

    def main_only(self) -> "Candidates":
        """The first path alone."""
        last = None if self._last is None else self._last[:1]
        return Candidates(self._known[:1], last, self._laws[:1], self._shares[:1], top=self.top)


@dataclass(frozen=True)
class DraftSource:
    """What there is to draft from. `history`: prompt and answer so far; the drafts follow its last token."""

    track: HeadTrack | None
    chooser: Chooser
    history: Sequence[int]
    probe: bool = False


class Drafter(Protocol):
    def draft(self, source: DraftSource, depth: int) -> Candidates | None:
        """Up to `depth` (at least 1) tokens that may follow; None when nothing is worth a verify."""
        ...
