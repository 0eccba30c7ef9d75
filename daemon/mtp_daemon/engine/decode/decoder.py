"""One request's decoding: prefill, then rounds."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from mtp_daemon.engine.decode.pipeline import Pipeline
from mtp_daemon.engine.decode.prefill import prefill
from mtp_daemon.engine.decode.request import new_request
from mtp_daemon.engine.decode.rollback import leaves
from mtp_daemon.engine.decode.round import Rounds, Run
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.depth import DepthController
from mtp_daemon.engine.depth.constant import Constant
from mtp_daemon.engine.draft.interface import Drafter
from mtp_daemon.engine.draft.ways import make_drafter
from mtp_daemon.engine.errors import EngineBug, RequestRefused
from mtp_daemon.engine.sampling import Chooser
from mtp_protocol.sampling import Sampling

CLEAR_EVERY = 256
"""Tokens after which buffers that MLX keeps for reuse are let go: caches that grow leave theirs behind."""


class Decoder:
    """Owner of a request's caches and history. Use `prefill` once, then `round` until enough tokens came, then `close`.

    The caller ends at an end-of-text token or a stop string: it takes what it wants of a run and asks for no further
    round. `delivered`: tokens of the answer that were sent before a restart; the answer goes on after them.
    """

    def __init__(
        self,
        target: Target,
        settings: DecodeSettings,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        delivered: Sequence[int] = (),
        *,
        controller: DepthController | None = None,
        drafter: Drafter | None = None,
        chooser: Chooser | None = None,
    ) -> None:
        """`controller` None: the constant depth `settings.depth`. `drafter` overrides the way that the settings name
        (tests script it). Raises RequestRefused for an empty prompt and for settings this model cannot serve.
        """
        if not prompt_ids:
            raise RequestRefused("the prompt is empty", "bad_request")
        self._prompt = len(prompt_ids)
        history = [*prompt_ids, *delivered]
        chooser = chooser or Chooser(sampling)
        self._state = new_request(target, settings, chooser, history, scripted=drafter is not None)
        drafter = drafter or make_drafter(settings.speculation, tau=settings.tau, width=settings.width)
        self._rounds = Rounds(self._state, drafter, controller or Constant(settings.depth))
        self._pipeline = Pipeline(self._state)
        self._deferred: int | None = None
        self._misses_before = 0
        self._clear_at = len(history) + CLEAR_EVERY

    @property
    def history(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return tuple(self._state.history)

    def prefill(self, progress: Callable[[int, int], None], cancelled: Callable[[], bool]) -> bool:
        """Feed the prompt in chunks; `progress(done, total)` in tokens. False when it was cancelled between chunks."""
        try:
            done = prefill(self._state, self._prompt, progress, cancelled)
        except BaseException:
            self._state.broken = True
            raise
        self._state.broken = not done
        self._misses_before = self._state.target.stream.stats.misses
        return done

    def round(self, limit: int) -> Run:
        """The next committed run, 1 to `limit` tokens (none for a limit of 0).

        After an error (an expert that cannot be read) the request stands where it stood before the round, and the
        round may be asked for again, unless `broken`.
        """
        if limit < 1:
            return Run(())
        if self._state.broken:
            raise EngineBug("a round was asked for after an error that cannot be taken back")
        run = self._next(limit)
        if len(self._state.history) >= self._clear_at:
            self._clear_at = len(self._state.history) + CLEAR_EVERY
            mx.clear_cache()
        return run

    def _next(self, limit: int) -> Run:
        depth = self._depth(limit)
        if not self._pipeline.in_flight and (depth > 0 or not self._pipeline.possible()):
            return self._rounds.run(depth)
        start = time.perf_counter()
        if depth > 0:
            # The token in flight comes first; the controller's choice is for the round after it.
            self._deferred = depth
            return self._rounds.piped(self._pipeline.next(go_on=False), time.perf_counter() - start, chosen=False)
        token = self._pipeline.next(go_on=limit > 1 and self._pipeline.possible())
        return self._rounds.piped(token, time.perf_counter() - start, chosen=True)

    def _depth(self, limit: int) -> int:
        deferred, self._deferred = self._deferred, None
        return self._rounds.choose_depth(limit) if deferred is None else min(deferred, limit - 1)

    @property
    def broken(self) -> bool:
        """An error left the caches between two positions: only `close` is of use."""
        return self._state.broken

    def stats(self) -> dict[str, Any]:
        """The numbers of this answer so far; `speculation` says how it was drafted, or why it was not."""
        state = self._state
        numbers = self._rounds.stats.as_dict(state.target.stream.stats.misses - self._misses_before)
        numbers["speculation"] = state.settings.speculation if state.plain_why is None else f"off: {state.plain_why}"
        numbers["cache_bytes"] = sum(int(c.nbytes) for c in self._caches())
        numbers["verify"] = "batch" if state.batch else f"step: {state.step_why}"
        return numbers

    def _caches(self) -> list[Any]:
        head = [] if self._state.head is None else [self._state.head.cache]
        return [*leaves(self._state.caches), *head]

    def close(self) -> None:
        """Let everything go that still runs or reads the pool."""
        self._state.broken = True
        self._state.target.stream.settle()
        self._state.caches.clear()
