"""Plain greedy decoding with every expert resident, one forward ahead of the host, as mlx-lm's `generate_step` runs.

The next forward is built from the last one's token before the host has read it, so the device never waits for Python.
Only where nothing needs the token on the host: greedy, no penalties, no log probabilities, no router read.
"""

from dataclasses import dataclass

import mlx.core as mx

from mtp_daemon.engine.decode.host import FedTokens, host_ints
from mtp_daemon.engine.decode.request import RequestState
from mtp_daemon.engine.mtp.hidden import chosen_rows
from mtp_daemon.engine.stream import DECODE
from mtp_protocol.sampling import Sampling


@dataclass(frozen=True)
class _Flight:
    """A forward that runs: the token it will choose [1], and the fed token's hidden row [1, 1, H] for the head."""

    token: mx.array
    hidden: mx.array | None


DRAIN_EVERY = 256
"""Tokens after which nothing is launched ahead once: what finished forwards leave behind is let go."""


class Pipeline:
    """At most one forward is in flight between calls; the caches then already hold the history's last token."""

    def __init__(self, state: RequestState) -> None:
        self._state = state
        self._flight: _Flight | None = None
        # As if a drain were due: the first token is handed out at once, while a launch may return only when most of its
        # forward is computed.
        self._since_drained = DRAIN_EVERY
        self._allowed = _needs_no_host(state.chooser.sampling)

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    def possible(self) -> bool:
        return self._allowed and self._state.target.stream.all_resident

    def next(self, go_on: bool) -> int:
        """The next token, committed; with `go_on` the forward after it is already running when this returns."""
        state = self._state
        self._since_drained += 1
        go_on = go_on and self._since_drained < DRAIN_EVERY
        try:
            flight = self._flight or self._launch(mx.array([[state.history[-1]]], dtype=mx.int32))
            self._flight = self._launch(flight.token[None]) if go_on else None
            token = host_ints(flight.token)[0]
            if self._flight is None:
                state.target.stream.settle()
                self._since_drained = 0
        except BaseException:
            state.broken = True
            raise
        state.history.append(token)
        if state.head is not None and flight.hidden is not None:
            state.head.take([token], flight.hidden)
        return token

    def _launch(self, ids: mx.array) -> _Flight:
        state = self._state
        target = state.target
        with target.stream.forward(FedTokens(ids), DECODE):
            rows = target.trunk.hidden(ids, state.caches)
            law = state.chooser.law
            weights = law.log_weights(law.adjusted(target.trunk.logits(rows.post)[0], [state.history]))
            token = mx.argmax(weights, axis=-1).astype(mx.int32)
            mx.async_eval(token)  # type: ignore[no-untyped-call]
        return _Flight(token, chosen_rows(rows, target.hidden) if state.head is not None else None)


def _needs_no_host(sampling: Sampling) -> bool:
    penalised = (
        sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
    )
    return sampling.greedy and not penalised and not sampling.logprobs
