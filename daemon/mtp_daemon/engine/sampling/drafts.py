"""Drafted tokens as a tree over the rows of a verify, and the walk along those that were right. Host side only."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtp_protocol.client_messages import TokenLogprobs


@dataclass(frozen=True)
class Draft:
    """A drafted token. `parent` is the verify row whose logits judge it; `row` the row that was fed with it, None
    when it was not fed (verified position by position, or a branch kept in reserve). `law` [V] as in `Proposal`;
    None for a draft chosen without chance. Drafts of one parent are tried in the order they are listed.
    """

    token: int
    parent: int
    row: int | None
    law: mx.array | None = None


@dataclass(frozen=True)
class Verdict:
    """`ids`: the accepted run and, last, the token the target adds. `rows[i]` is the row whose logits chose `ids[i]`:

    row 0, then the rows of the accepted drafts in order. `matched[i]` is the index of the draft that equals `ids[i]`;
    the last is None, or a draft that was not fed. `logprobs` has one entry an id when they were asked for.
    """

    ids: tuple[int, ...]
    rows: tuple[int, ...]
    matched: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def accepted(self) -> int:
        """How many fed drafts were accepted."""
        return len(self.rows) - 1


def chain(tokens: Sequence[int], laws: Sequence[mx.array | None] | None = None) -> list[Draft]:
    """The drafts of one path fed as rows 1, 2, … after row 0."""
    given = laws if laws is not None else [None] * len(tokens)
    return [Draft(token, i, i + 1, law) for i, (token, law) in enumerate(zip(tokens, given, strict=True))]


def paths_to_rows(rows: int, drafts: Sequence[Draft]) -> list[list[int]]:
    """The drafted tokens that lead to each row. Raises ValueError when a row has no way to it, or two."""
    paths: dict[int, list[int]] = {0: []}
    for draft in drafts:
        if draft.parent not in paths:
            raise ValueError(f"the draft {draft.token} hangs on row {draft.parent}, which nothing leads to")
        if draft.row is None:
            continue
        if draft.row in paths:
            raise ValueError(f"row {draft.row} is led to twice")
        paths[draft.row] = [*paths[draft.parent], draft.token]
    if sorted(paths) != list(range(rows)):
        raise ValueError(f"the drafts lead to rows {sorted(paths)} of {rows} that were verified")
    return [paths[row] for row in range(rows)]


def turns_of(rows: int, drafts: Sequence[Draft]) -> list[list[int | None]]:
    """`turns[k][r]` is the index of the k-th draft of parent r, None where it has fewer."""
    children: list[list[int]] = [[] for _ in range(rows)]
    for index, draft in enumerate(drafts):
        children[draft.parent].append(index)
    return [[c[k] if k < len(c) else None for c in children] for k in range(max(map(len, children)))]


def equal_drafts(tokens: Sequence[int], drafts: Sequence[Draft]) -> list[int | None]:
    """For each row the draft of that parent that equals the target's choice; fed ones go first."""
    found: list[int | None] = [None] * len(tokens)
    for index, draft in enumerate(drafts):
        if draft.token == tokens[draft.parent]:
            before = found[draft.parent]
            if before is None or (drafts[before].row is None and draft.row is not None):
                found[draft.parent] = index
    return found


def walk(
    tokens: Sequence[int],
    by_row: Sequence[int | None],
    drafts: Sequence[Draft],
    logprobs: Sequence[TokenLogprobs],
) -> Verdict:
    """Follows the accepted drafts from row 0 to the first row none of whose fed drafts was accepted."""
    rows: list[int] = []
    row: int | None = 0
    while row is not None:
        rows.append(row)
        index = by_row[row]
        row = None if index is None else drafts[index].row
    return Verdict(
        ids=tuple(tokens[r] for r in rows),
        rows=tuple(rows),
        matched=tuple(by_row[r] for r in rows),
        logprobs=tuple(logprobs[r] for r in rows) if logprobs else (),
    )
