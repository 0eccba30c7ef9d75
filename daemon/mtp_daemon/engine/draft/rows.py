"""Paths drafted side by side by the head, one host read a step.

Step j embeds the tokens of step j - 1 unread. Its layer reads its router's ids on the host, which brings those tokens
and their confidence along (they are made dependencies of the embedding); where nothing streams, the one read is of the
tokens themselves.
"""

from collections.abc import Sequence

import mlx.core as mx

from mtp_daemon.engine.decode.host import host_ints
from mtp_daemon.engine.draft.interface import Candidates, DraftSource
from mtp_daemon.engine.mtp.track import Drafting
from mtp_daemon.engine.sampling import Proposal


class Rows:
    """The rows of one draft; row 0 is the main path. `step`, then `extend`, as often as tokens are wanted."""

    def __init__(self, drafting: Drafting, source: DraftSource) -> None:
        self._drafting, self._source = drafting, source
        self._known: list[list[int]] = [[]]
        self._laws: list[list[mx.array | None]] = [[]]
        self._shares = [0]
        self._parents: list[int] = [0]
        self._out: mx.array | None = None
        self._proposal: Proposal | None = None
        self._unread: tuple[mx.array, mx.array] | None = None  # the last token of each row, and its confidence
        self._top: mx.array | None = None
        self.confidence = 1.0
        """The head's largest probability where the main path's last token that was read was drafted."""

    def step(self, count: int = 1) -> None:
        """Runs the head once and proposes `count` tokens for each row. Reads the tokens of the step before."""
        if self._out is None or self._unread is None:
            self._out = self._drafting.first()
        else:
            tokens, confidence = self._unread
            self._out = self._drafting.next(mx.depends(tokens, [confidence]), self._out, self._parents)
            self.read()
        logits = self._drafting.logits(self._out)
        if self._source.probe and self._top is None:
            self._top = mx.argsort(-logits[0])[:3]
        self._proposal = self._source.chooser.propose(logits, self._source.history, self._known, count)

    def extend(self, picks: Sequence[tuple[int, int]]) -> None:
        """The new rows: pick (r, c) goes on from row r with its c-th proposed token; the first goes on from row 0."""
        proposal = self._proposal
        assert proposal is not None and picks[0] == (0, 0)
        length = len(self._known[0])
        self._parents = [r for r, _ in picks]
        tokens = proposal.tokens[mx.array(self._parents), mx.array([c for _, c in picks])]
        self._unread = tokens, proposal.confidence
        self._known = [list(self._known[r]) for r in self._parents]
        law = proposal.law
        self._laws = [[*self._laws[r], None if law is None else law[r]] for r in self._parents]
        self._shares = [length if c else self._shares[r] for r, c in picks]

    def read(self) -> None:
        """The host reads the last tokens, if it has not."""
        if self._unread is None:
            return
        tokens, confidence = self._unread
        mx.eval(tokens, confidence)
        for path, token in zip(self._known, host_ints(tokens), strict=True):
            path.append(token)
        self.confidence = float(confidence[0])
        self._unread = None

    def candidates(self, *, together: bool = False) -> Candidates:
        """The paths as they are; tokens that were not read stay unread."""
        last = None if self._unread is None else self._unread[0]
        return Candidates(self._known, last, self._laws, self._shares, together=together, top=self._top)

    def without_last(self, *, together: bool = False) -> Candidates | None:
        """The paths without the tokens read last, and without the branches that began there."""
        length = len(self._known[0]) - 1
        rows = [r for r, shares in enumerate(self._shares) if r == 0 or shares < length]
        if length == 0:
            return None
        return Candidates(
            [self._known[r][:length] for r in rows],
            None,
            [self._laws[r][:length] for r in rows],
            [self._shares[r] for r in rows],
            together=together,
            top=self._top,
        )
