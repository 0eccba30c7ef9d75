"""A round: draft, verify, accept, commit. Plain decoding is a round of depth 0."""

import logging
from dataclasses import dataclass

from mtp_daemon.engine.decode.host import host_ints
from mtp_daemon.engine.decode.request import RequestState
from mtp_daemon.engine.decode.stats import RoundStats
from mtp_daemon.engine.decode.verify import Verified, verify
from mtp_daemon.engine.depth import DepthController, RoundTimes
from mtp_daemon.engine.draft.interface import Candidates, Drafter, DraftSource, Path
from mtp_daemon.engine.errors import EngineBug, EnvironmentFailed
from mtp_protocol.client_messages import TokenLogprobs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Committed tokens of one round, all of them recorded in the history before this is handed out.

    `logprobs` has one entry a token where the request asked for them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Rounds:
    """Runs rounds over one request's state, and counts."""

    def __init__(self, state: RequestState, drafter: Drafter, controller: DepthController) -> None:
        self._state, self._drafter, self._controller = state, drafter, controller
        self.stats = RoundStats()

    def choose_depth(self, limit: int) -> int:
        """How many tokens to draft in a round that may commit `limit`."""
        state = self._state
        if state.plain_why is not None or limit < 2:
            return 0
        return max(0, self._controller.choose(min(limit - 1, state.settings.depth)))

    def run(self, depth: int) -> Run:
        """One round of at most `depth` drafts that commits 1 to `depth` + 1 tokens. After an error it is as if not
        begun, and may be run again.
        """
        times = _Times(self._state, self.stats)
        candidates = self._draft(depth) if depth else None
        first = verify(self._state, candidates, self.stats.seconds)
        drafted = candidates.length if candidates is not None else 0
        runs = [first]
        self.stats.verified(drafted, first.verdict.accepted)
        if candidates is not None and candidates.top is not None:
            self.stats.probe(host_ints(candidates.top), first.verdict.ids[0])
        if (second := self._rescue(first)) is not None:
            runs.append(second)
        ids = tuple(token for run in runs for token in run.verdict.ids)
        self.stats.round_ended(depth, len(ids))
        # With a rescue the path that was taken is the branch's, right up to the last token committed but one.
        self._controller.observe(times.round(drafted, len(ids) - 1))
        return Run(ids, tuple(entry for run in runs for entry in run.verdict.logprobs))

    def piped(self, token: int, seconds: float, *, chosen: bool) -> Run:
        """A token that the pipeline committed in `seconds`. `chosen`: in a round whose depth the controller chose;
        it hears of that round, and of no other.
        """
        self.stats.verified(0, 0)
        self.stats.pipelined += 1
        self.stats.seconds.verify += seconds
        self.stats.round_ended(0, 1)
        if chosen:
            self._controller.observe(RoundTimes(0, 0, 0.0, seconds, 0.0, 0, 0))
        return Run((token,))

    def _draft(self, depth: int) -> Candidates | None:
        state = self._state
        source = DraftSource(state.head, state.chooser, state.history, state.settings.probe)
        with self.stats.seconds.measure("draft"):
            candidates = self._drafter.draft(source, depth)
        if candidates is not None and candidates.length > depth:
            raise EngineBug(f"{candidates.length} tokens were drafted where {depth} were asked for")
        return candidates

    def _rescue(self, first: Verified) -> Verified | None:
        """The reject's true token began a branch: verify the rest of that branch in the same round.

        The branch is as long as the main path, so its tokens fit the round's limit as well.
        """
        path = first.rescue
        if path is None or path.shares + 1 == len(path.tokens):
            return None
        rest = Path(path.tokens[path.shares + 1 :], path.laws[path.shares + 1 :])
        try:
            second = verify(self._state, Candidates([rest.tokens], None, [rest.laws], [0]), self.stats.seconds)
        except EnvironmentFailed as error:
            # What the first verify committed is handed out; if the trouble stays, the next round tells of it.
            log.warning("a rescue was given up: %s", error)
            return None
        except BaseException:
            self._state.broken = True
            raise
        self.stats.rescues += 1
        self.stats.verified(len(rest.tokens), second.verdict.accepted)
        return second


class _Times:
    """What a round takes, from the clocks and counters as they stood when it began."""

    def __init__(self, state: RequestState, stats: RoundStats) -> None:
        self._stream, self._seconds = state.target.stream, stats.seconds
        self._draft, self._total = stats.seconds.draft, stats.seconds.total
        before = self._stream.stats
        self._wait, self._hits, self._misses = before.wait_s, before.hits, before.misses

    def round(self, drafted: int, accepted: int) -> RoundTimes:
        now = self._stream.stats
        stall = now.wait_s - self._wait
        self._seconds.stall += stall
        draft = self._seconds.draft - self._draft
        rest = self._seconds.total - self._total - draft
        misses = now.misses - self._misses
        # The stall lies within both; what the draft could not have taken was the verify's.
        in_draft = min(stall, draft) if not rest else min(draft, stall * draft / (draft + rest))
        requests = now.hits - self._hits + misses
        return RoundTimes(drafted, accepted, draft - in_draft, rest - (stall - in_draft), stall, requests, misses)
