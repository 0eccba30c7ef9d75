"""Verify and commit: the target's forward over the drafts, its verdict, and the caches taken to where it ends."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import mlx.core as mx

from mtp_daemon.engine.decode.host import FedTokens
from mtp_daemon.engine.decode.request import RequestState
from mtp_daemon.engine.decode.rollback import Snapshot
from mtp_daemon.engine.decode.stats import Seconds
from mtp_daemon.engine.draft.interface import Candidates, Path
from mtp_daemon.engine.mtp.hidden import chosen_rows
from mtp_daemon.engine.sampling import Draft, Verdict
from mtp_daemon.engine.stream import DECODE


@dataclass(frozen=True)
class Verified:
    """`rescue`: the path in reserve that begins with the token the target added, if there is one."""

    verdict: Verdict
    rescue: Path | None


def verify(state: RequestState, candidates: Candidates | None, seconds: Seconds) -> Verified:
    """Feed the last token of the history and the drafts, judge them, commit what is right.

    Afterwards history, caches and the head's known pairs stand after the accepted run. Whatever goes wrong before the
    commit, an error or a cancel included, leaves them as they were.
    """
    if candidates is not None and candidates.rows > 1 and not state.side_by_side:
        candidates = candidates.main_only()
    rows, length = (candidates.rows, candidates.length) if candidates is not None else (1, 0)
    with _guard(state, rows, length) as snapshot:
        with seconds.measure("verify"):
            ids = _fed_ids(state.history[-1], candidates)
            post, hidden = _forward(state, ids, snapshot if length else None)
        with seconds.measure("sync"):
            paths = candidates.paths() if candidates is not None else ()
            nodes = _Nodes(paths if rows > 1 else paths[:1], length + 1)
            reserve = () if rows > 1 else paths[1:]
            drafts = [*nodes.drafts, *_reserve_drafts(reserve)]
            logits = state.target.trunk.logits(nodes.select(post))[0]
            verdict = state.chooser.judge(logits, state.history, drafts)
            state.target.stream.settle()
        with seconds.measure("commit"):
            kept, row = len(verdict.ids), nodes.batch_row(verdict.rows[-1])
            if snapshot is not None:
                snapshot.commit(kept, length + 1, row)
            state.history.extend(verdict.ids)
            if state.head is not None and hidden is not None:
                state.head.take(verdict.ids, hidden[row : row + 1, :kept])
    return Verified(verdict, _rescue(reserve, len(nodes.drafts), verdict))


def _guard(state: RequestState, rows: int, length: int) -> AbstractContextManager[Snapshot | None]:
    if length or state.batch:
        return Snapshot(state.caches, batch=state.batch and length > 0, rows=rows)
    # Copies of a rotating window for every plain token would cost more than they save: an error ends the request.
    return _Breaks(state)


class _Breaks(AbstractContextManager[None]):
    def __init__(self, state: RequestState) -> None:
        self._state = state

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._state.broken = True


def _fed_ids(last: int, candidates: Candidates | None) -> mx.array:
    """[rows, 1 + length] int32."""
    if candidates is None:
        return mx.array([[last]], dtype=mx.int32)
    first = mx.full((candidates.rows, 1), last, dtype=mx.int32)
    return mx.concatenate([first, candidates.fed()], axis=1)


def _forward(state: RequestState, ids: mx.array, marks: Snapshot | None) -> tuple[mx.array, mx.array | None]:
    """`(post, hidden)` [rows, S, H]: rows for the logits, and rows for the head (None without one)."""
    spans = [ids] if state.batch else mx.split(ids, ids.shape[1], axis=1)
    post, hidden = [], []
    for span in spans:
        fed = FedTokens(span)
        state.target.stream.announce(fed)
        with state.target.stream.forward(fed, DECODE):
            rows = state.target.trunk.hidden(span, state.caches)
        if marks is not None and not state.batch:
            marks.mark()
        post.append(rows.post)
        if state.head is not None:
            hidden.append(chosen_rows(rows, state.target.hidden))
    return _joined(post), _joined(hidden) if hidden else None


def _joined(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)


class _Nodes:
    """The distinct drafted prefixes of paths fed side by side: each is judged once.

    Node 0 is the fed last token; node n > 0 a draft, at `(batch row, position)` of the forward.
    """

    def __init__(self, paths: Sequence[Path], positions: int) -> None:
        self.drafts: list[Draft] = []
        self._at = [(0, 0)]
        self._positions = positions
        node_of: dict[tuple[int, ...], int] = {(): 0}
        # Position by position, so that drafts of one parent keep the order of the paths.
        for position in range(1, positions):
            for row, path in enumerate(paths):
                prefix = path.tokens[:position]
                if prefix in node_of:
                    continue
                node_of[prefix] = len(self._at)
                parent = node_of[prefix[:-1]]
                self.drafts.append(Draft(prefix[-1], parent, len(self._at), path.laws[position - 1]))
                self._at.append((row, position))
        self._rows = len(paths)

    def select(self, post: mx.array) -> mx.array:
        """[1, nodes, H] of `post` [rows, positions, H]."""
        if self._rows <= 1:
            return post
        flat = mx.array([row * self._positions + position for row, position in self._at])
        return post.reshape(1, -1, post.shape[-1])[:, flat]

    def batch_row(self, node: int) -> int:
        return self._at[node][0]


def _reserve_drafts(paths: Sequence[Path]) -> list[Draft]:
    """The first token of each branch: it hangs on the main path and is not fed."""
    return [Draft(path.tokens[path.shares], path.shares, None, path.laws[path.shares]) for path in paths]


def _rescue(reserve: Sequence[Path], fed: int, verdict: Verdict) -> Path | None:
    last = verdict.matched[-1]
    if last is None or last < fed:
        return None
    path = reserve[last - fed]
    return path if path.shares == verdict.accepted else None
