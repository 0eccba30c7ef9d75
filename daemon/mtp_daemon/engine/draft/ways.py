"""The ways to draft, by name. All of them step the head alike; they differ in where paths branch and when they stop.

chain            one path, verified as one row
adaptive         the same, as long as the head is sure
rescue           a main path, and branches from the second candidates at its first and second position; the main path is
                 verified, and on a reject whose true token begins a branch, that branch, in the same round
tree             a path from each of the best candidates at the first position, verified side by side as rows of a batch
adaptive+rescue  as rescue, as long as the head is sure
"""

from mtp_daemon.engine.draft.interface import Candidates, Drafter, DraftSource
from mtp_daemon.engine.draft.rows import Rows, Unsure
from mtp_daemon.engine.errors import RequestRefused


class HeadDrafter:
    """Drafts with the MTP head.

    `widths[j]`: candidates of the main path at position j (1 past the end): each but the first begins a branch.
    `tau`: drafting stops before the first token of which the head's largest probability is lower. That probability
    belongs to the law, not to the token drawn from it, so stopping on it leaves sampling exact. It comes with the next
    step's read, before that step asks for experts. `together`: all paths are verified side by side.
    """

    def __init__(self, widths: tuple[int, ...] = (), tau: float = 0.0, *, together: bool = False) -> None:
        self._widths, self._tau, self._together = widths, tau, together

    def draft(self, source: DraftSource, depth: int) -> Candidates | None:
        if source.track is None or not source.track.waiting:
            return None
        with source.track.drafting() as drafting:
            rows = Rows(drafting, source, self._tau)
            try:
                self._step(rows, depth)
            except Unsure:
                return rows.without_last(together=self._together)
            return rows.candidates(together=self._together)

    def _step(self, rows: Rows, depth: int) -> None:
        paths = 1
        for position in range(depth):
            width = self._width(position, depth)
            rows.step(width)
            rows.extend([*((r, 0) for r in range(paths)), *((0, c) for c in range(1, width))])
            paths += width - 1
        if self._tau > 0:
            rows.read()

    def _width(self, position: int, depth: int) -> int:
        # A branch that ends where it begins has nothing to verify, unless it is a row of the batch.
        if position >= len(self._widths) or (position + 1 == depth and not self._together):
            return 1
        return self._widths[position]


def make_drafter(way: str, *, tau: float, width: int) -> Drafter:
    """The drafter called `way`; `tau` for the adaptive ones, `width` paths for a tree."""
    match way:
        case "chain" | "off":  # off: a round of depth 0 asks no drafter
            return HeadDrafter()
        case "adaptive":
            return HeadDrafter(tau=tau)
        case "rescue":
            return HeadDrafter((2, 2))
        case "tree":
            return HeadDrafter((width,), together=True)
        case "adaptive+rescue":
            return HeadDrafter((2, 2), tau=tau)
        case _:
            raise RequestRefused(f"no way to draft is called {way!r}", "bad_request")
