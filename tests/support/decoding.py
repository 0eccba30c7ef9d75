"""Decoding in tests: tiny resident targets, what plain mlx-lm would say, scripted drafters, caches compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.draft.interface import Candidates, Drafter, DraftSource
from mtp_daemon.engine.mtp.head import MtpHead, head_args
from mtp_daemon.engine.mtp.track import HeadTrack
from mtp_daemon.engine.stream import ResidentStream
from mtp_daemon.engine.trunk import Trunk
from mtp_protocol.sampling import Sampling
from support.checkpoints import make_head_weights, make_model

VOCAB = 512


def scripted(*paths: Sequence[int], together: bool = False) -> Candidates:
    """Paths whose tokens are known: what a drafter that is no head gives. Tokens shared with the first are counted."""
    shares = [0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(path, paths[0], strict=True)]
        shares.append(same.index(False) if False in same else len(same))
    return Candidates(paths, None, [[None] * len(path) for path in paths], shares, together=together)


def random_head(family: str, model: Any, seed: int = 0) -> MtpHead:
    """A resident random head: it agrees with its model about never."""
    head = MtpHead(head_args(model))
    head.load_weights(list(make_head_weights(family, seed=seed).items()))
    mx.eval(head.parameters())
    head.watch()
    return head


@cache
def target(family: str, *, head: bool = False, quant: str | None = None, seed: int = 0) -> Target:
    """A tiny random model, all its experts resident; the same object for the same arguments."""
    model, _ = make_model(family, quant=quant, seed=seed)
    mx.eval(model.parameters())
    made = random_head(family, model, seed) if head else None
    return Target(Trunk(model), ResidentStream(), made)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@cache
def _reference(on: Target, prompt: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    steps = generate_step(mx.array(list(prompt)), on.trunk.model, max_tokens=tokens)
    return tuple(int(token) for token, _ in steps)


def reference(on: Target, prompt: Sequence[int], tokens: int) -> list[int]:
    """REF: plain mlx-lm, greedy, all experts resident, one token at a time."""
    return list(_reference(on, tuple(prompt), tokens))


Script = Callable[[int, int], int]
"""(position in the draft, true token) → the token drafted."""


def oracle(position: int, true: int) -> int:
    return true


def wrong(position: int, true: int) -> int:
    return (true + 1) % VOCAB


def right_then_wrong(right: int) -> Script:
    return lambda position, true: true if position < right else (true + 1) % VOCAB


@dataclass
class Scripted:
    """Drafts by `script` from the true answer. `way` "tree" and "rescue" put the true tokens into other paths too:

    a tree's last row is wholly right; a rescue's branches begin with the true token and go on right.
    """

    answer: Sequence[int]
    prompt: int
    script: Script
    way: str = "chain"

    def draft(self, source: DraftSource, depth: int) -> Candidates | None:
        at = len(source.history) - self.prompt
        true = list(self.answer[at : at + depth])
        if not true:
            return None
        main = [self.script(i, token) for i, token in enumerate(true)]
        if self.way == "tree":
            other = [wrong(0, main[0]), *main[1:]]
            return scripted(main, other, true, together=True) if main != true else scripted(main, other, together=True)
        if "rescue" in self.way and len(true) > 1:
            branches = [[*main[:i], *true[i:]] for i in range(min(2, len(true) - 1)) if main[i] != true[i]]
            return scripted(main, *branches)
        return scripted(main)


def decoder(
    on: Target,
    prompt: Sequence[int],
    *,
    sampling: Sampling | None = None,
    drafter: Drafter | None = None,
    delivered: Sequence[int] = (),
    **settings: Any,
) -> Decoder:
    """A decoder whose prompt is already in."""
    made = Decoder(on, DecodeSettings(**settings), prompt, sampling or Sampling(), delivered, drafter=drafter)
    assert made.prefill(lambda done, total: None, lambda: False)
    return made


def run(decoding: Decoder, tokens: int, after_round: Callable[[Decoder], None] | None = None) -> list[int]:
    """`tokens` ids, round by round."""
    ids: list[int] = []
    while len(ids) < tokens:
        ids += decoding.round(tokens - len(ids)).ids
        if after_round is not None:
            after_round(decoding)
    return ids


def contents(one: Any) -> list[np.ndarray]:
    """What a cache holds, in time order, whatever its buffers look like."""
    if isinstance(one, ArraysCache):
        return [np.array(a.astype(mx.float32)) for a in one.cache if a is not None]
    if one.keys is None:
        return []
    if isinstance(one, KVCache):
        arrays = [one.keys[..., : one.offset, :], one.values[..., : one.offset, :]]
    else:
        assert isinstance(one, RotatingKVCache)
        # A batch leaves more rows than the window holds; the oldest of them are never read again.
        arrays = [one._temporal_order(a)[..., -min(one.offset, one.max_size) :, :] for a in (one.keys, one.values)]
    return [np.array(a.astype(mx.float32)) for a in arrays]


def assert_same_caches(caches: Sequence[Any], fresh: Sequence[Any]) -> None:
    assert len(caches) == len(fresh)
    for layer, (ours, theirs) in enumerate(zip(caches, fresh, strict=True)):
        if hasattr(theirs, "offset"):
            assert ours.offset == theirs.offset, f"layer {layer}"
        for kind, (a, b) in enumerate(zip(contents(ours), contents(theirs), strict=True)):
            assert a.shape == b.shape and a.tobytes() == b.tobytes(), f"layer {layer}, array {kind}"


def assert_like_fresh(decoding: Decoder) -> None:
    """Trunk and head caches equal those of a fresh prefill of the committed prefix."""
    state = decoding._state
    prefix = state.history[:-1]
    fresh = state.target.trunk.make_cache()
    rows = state.target.trunk.hidden(mx.array([prefix]), fresh)
    mx.eval(rows.post)
    assert_same_caches(state.caches, fresh)
    if state.head is None:
        return
    track = HeadTrack(state.head.head, state.target.trunk, state.target.stream)
    assert state.head.cache.offset + state.head.waiting == len(prefix)
    track.take(state.history[1:], rows.post if state.target.hidden == "post_norm" else rows.pre)
    track.absorb(all_rows=True)
    fresh_head, cached = contents(track.cache), state.head.cache.offset
    for ours, theirs in zip(contents(state.head.cache), fresh_head, strict=False):
        assert ours.tobytes() == theirs[..., :cached, :].tobytes(), "the head's cache"
    assert np.array_equal(
        np.array(mx.concatenate(state.head._hidden, axis=1)) if state.head._hidden else np.zeros(0),
        np.array(rows.post[:, cached:]) if state.head._hidden else np.zeros(0),
    ), "the head's waiting rows"
