"""Embedding, hidden rows and logits of any mlx-lm model, each on its own.

mlx-lm's models go from token ids to logits in one call. Decoding needs the pieces: the hidden rows without the logits
(prefill computes one position's logits only), the rows before the final norm (some MTP heads read them), the logits of
chosen rows. The pieces are the model's own modules: nothing is computed in another way than mlx-lm does.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from mtp_daemon.engine.errors import RequestRefused


class _Tap:
    """What one forward leaves for the trunk, and what the trunk puts in its place."""

    def __init__(self) -> None:
        self.before_norm: mx.array | None = None
        self.rows: mx.array | None = None


class HiddenRows:
    """Hidden rows `[B, S, H]` of one forward: `post` after the final norm, `pre` before it."""

    def __init__(self, post: mx.array, pre: mx.array | None) -> None:
        self.post = post
        self._pre = pre

    @property
    def pre(self) -> mx.array:
        """Raises RequestRefused where the model's final norm is not a module called `norm`."""
        if self._pre is None:
            raise RequestRefused("this model's rows before the final norm cannot be seen; use post_norm")
        return self._pre


class Trunk:
    """A loaded mlx-lm model seen in pieces. Owned by the MLX thread.

    Raises RequestRefused for a model that is not built as `embed_tokens`, `layers`, final norm, logits.
    """

    def __init__(self, model: Module) -> None:
        self.model = model
        self.text: Any = model.get("language_model", model)
        if "model" not in self.text or "embed_tokens" not in self.text["model"]:
            raise RequestRefused(
                f"model type {getattr(model, 'model_type', '?')!r} has no embed_tokens and layers to run"
            )
        self.inner: Any = self.text["model"]
        self._tap = _Tap()
        _watch(self.inner, self._tap)

    @property
    def layers(self) -> Sequence[Module]:
        """The decoder layers, in order."""
        layers: Sequence[Module] = self.inner.layers
        return layers

    def make_cache(self) -> list[Any]:
        """One fresh cache a layer, of the kinds the model asks for."""
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def embed(self, ids: mx.array) -> mx.array:
        """`[B, S]` token ids to `[B, S, H]`."""
        rows: mx.array = self.inner.embed_tokens(ids)
        return rows

    def hidden(self, ids: mx.array, cache: list[Any]) -> HiddenRows:
        """Run the decoder layers over `[B, S]` token ids; the caches take them up. Nothing is evaluated."""
        self._tap.before_norm = None
        post = self.inner(ids, cache)
        pre, self._tap.before_norm = self._tap.before_norm, None
        return HiddenRows(post, pre)

    def logits(self, post: mx.array) -> mx.array:
        """`[B, S, H]` rows after the final norm to `[B, S, V]`, by the model's own way (tied, capped, scaled, …)."""
        self._tap.rows = post
        try:
            logits: mx.array = self.text(post)
        finally:
            self._tap.rows = None
        return logits


def _watch(inner: Any, tap: _Tap) -> None:
    """Give the inner model and its final norm classes that leave and take rows through `tap`.

    A module's `__call__` is looked up on its class, so the instances get subclasses of their own classes; parameters
    and their names stay as they are.
    """
    plain_inner: Any = type(inner)

    class Watched(plain_inner):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
            if tap.rows is not None:
                return tap.rows
            return super().__call__(inputs, *args, **kwargs)

    inner.__class__ = Watched
    if "norm" not in inner:
        return
    plain_norm: Any = type(inner["norm"])

    class WatchedNorm(plain_norm):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> Any:
            tap.before_norm = x
            return super().__call__(x)

    inner["norm"].__class__ = WatchedNorm
