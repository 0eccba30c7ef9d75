"""An answer's tokens and text, released together once they are certain."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mtp_daemon.engine.text.decoding import Decode, IncrementalDecoding
from mtp_daemon.engine.text.stops import StopStrings


@dataclass(frozen=True)
class Piece:
    """Tokens number `seq`, … of the answer, and the text that is theirs."""

    seq: int
    ids: tuple[int, ...]
    text: str


class AnswerText:
    """Ids go in, pieces come out. What is released is a function of the ids alone, not of how they came in runs, so
    an answer that goes on after a crash, with the ids that were delivered, goes on in the same place of the text.

    An id is held back while its character is incomplete or its text may belong to a stop string. `ended`: an
    end-of-text id, which is the answer's last id and has no text, or a stop string, before which the text ends; ids
    that lie wholly within the stop string are not the answer's.
    """

    def __init__(
        self, decode: Decode, eos: Collection[int], stops: Sequence[str] = (), delivered: Sequence[int] = ()
    ) -> None:
        """Raises ValueError for an empty stop string."""
        self._eos = eos
        self._stops = StopStrings(stops)
        self._decoding = IncrementalDecoding(decode)
        self._ids: list[int] = []
        # (ids, characters of text) wherever the two agree, from what was released last on.
        self._marks: list[tuple[int, int]] = [(0, 0)]
        self.ended = False
        for token in delivered:
            self._add(token)
        self._release(len(self._ids))
        # Delivered is delivered, even where it was cut inside a character: the text comes with the ids after it.
        self._marks[0] = (len(self._ids), self._marks[0][1])

    @property
    def released(self) -> int:
        """How many ids have been released, delivered ones included."""
        return self._marks[0][0]

    def add(self, ids: Sequence[int]) -> Piece | None:
        """What became certain with `ids`. Ids after the end of the answer are dropped."""
        for token in ids:
            self._add(token)
        if self.ended:
            return self._release(self._marks[-1][0])
        certain = self._stops.certain(self._decoding.text)
        return self._release(max(ids for ids, chars in self._marks if chars <= certain))

    def finish(self) -> Piece | None:
        """Everything that is left: no more ids will come."""
        if not self.ended:
            self._flush()
        return self._release(self._marks[-1][0])

    def _add(self, token: int) -> None:
        if self.ended:
            return
        self._ids.append(token)
        if token in self._eos:
            self._flush()
            self.ended = True
            return
        seen = len(self._decoding.text)
        if self._decoding.add(token):
            self._mark(self._decoding.complete, seen)

    def _flush(self) -> None:
        seen = len(self._decoding.text)
        self._decoding.text += self._decoding.rest()
        self._mark(len(self._ids), seen)

    def _mark(self, ids: int, seen: int) -> None:
        """Note that the text so far is that of the first `ids`; end before a stop string, if one is there now."""
        self._marks.append((ids, len(self._decoding.text)))
        at = self._stops.find(self._decoding.text, seen)
        if at is None:
            return
        self.ended = True
        reaching = min(ids for ids, chars in self._marks if chars >= at)
        self._marks = [mark for mark in self._marks if mark[1] < at]
        self._marks.append((reaching, at))

    def _release(self, ids: int) -> Piece | None:
        """The piece up to the last mark within `ids`; None when it holds no id."""
        seq, start = self._marks[0]
        within = [mark for mark in self._marks if mark[0] <= ids]
        end, chars = within[-1] if within else (seq, start)
        self._marks = [(end, chars), *[mark for mark in self._marks if mark[0] > end]]
        return Piece(seq, tuple(self._ids[seq:end]), self._decoding.text[start:chars]) if end > seq else None
