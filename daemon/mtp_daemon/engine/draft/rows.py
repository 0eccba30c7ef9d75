"""Paths drafted side by side by the head, one host read a step.

Step j embeds the tokens of step j - 1 unread. Where its experts' layer needs the router's ids on the host, those tokens
and their confidence are read with them; a step that turns out not to be wanted ends there, before any expert is read.
"""

from collections.abc import Sequence

import mlx.core as mx

from mtp_daemon.engine.decode.host import host_ints
from mtp_daemon.engine.draft.interface import Candidates, DraftSource
from mtp_daemon.engine.errors import EngineBug
from mtp_daemon.engine.mtp.track import Drafting
from mtp_daemon.engine.sampling import Proposal


class Unsure(Exception):
    """Where the main path's last token was drafted, the head's largest probability is under tau. Ends the draft."""


class Rows:
    """The rows of one draft; row 0 is the main path. `step`, then `extend`, as often as tokens are wanted."""

    def __init__(self, drafting: Drafting, source: DraftSource, tau: float) -> None:
        self._drafting, self._source, self._tau = drafting, source, tau
        self._known: list[list[int]] = [[]]
        self._laws: list[list[mx.array | None]] = [[]]
        self._shares = [0]
        self._parents: list[int] = [0]
        self._out: mx.array | None = None
        self._proposal: Proposal | None = None
        self._unread: tuple[mx.array, mx.array] | None = None  # the last token of each row, and its confidence
        self._top: mx.array | None = None

    def step(self, count: int = 1) -> None:
        """Runs the head once and proposes `count` tokens for each row. Reads the tokens of the step before.

        Raises Unsure where those should not be there.
        """
        if self._out is None or self._unread is None:
            self._out = self._drafting.first()
        else:
            self._out = self._drafting.next(self._unread[0], self._out, self._parents, self.read)
            if self._unread is not None:
                raise EngineBug("the head's experts were not watched: call `watch` when they are in place")
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

    def read(self, *with_them: mx.array) -> None:
        """The host reads the last tokens, in one with what else it waits for. Raises Unsure."""
        assert self._unread is not None
        tokens, confidence = self._unread
        sure = confidence[0] >= self._tau
        mx.eval(tokens, sure, *with_them)
        for path, token in zip(self._known, host_ints(tokens), strict=True):
            path.append(token)
        self._unread = None
        if not sure:
            raise Unsure

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
