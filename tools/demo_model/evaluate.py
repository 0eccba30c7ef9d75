"""What is reported of a trained model: bits a character, routing, how good the head is."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .model import DemoModel


@torch.no_grad()
def quick(model: DemoModel, held: Tensor, characters: int, rows: int = 64) -> dict[str, float]:
    """Bits a character and head agreement on ``rows`` blocks of 256 tokens, evenly spread.

    Each block starts without context, so the figure is a little worse than the final one.
    """
    model.eval()
    starts = torch.linspace(0, len(held) - 259, rows).long().tolist()
    nats, agree, count = 0.0, 0.0, 0
    for at in range(0, rows, 16):
        block = torch.stack([held[s : s + 258] for s in starts[at : at + 16]])
        hidden = model.model(block[:, :256])
        logits = model.logits(hidden)
        nats += float(F.cross_entropy(logits.flatten(0, 1), block[:, 1:257].flatten()))
        out = model.mtp(model.model.embed_tokens(block[:, 1:257]), hidden)
        same = model.logits(out)[:, :-1].argmax(-1) == logits[:, 1:].argmax(-1)
        agree += float(same.float().mean())
        count += 1
    model.train()
    per_token = nats / count / math.log(2)
    return {"bits_a_character": per_token * len(held) / characters, "agree": agree / count}


class _Tally:
    """Sums over the held-out chapters; ``report`` turns them into figures."""

    def __init__(self, experts: int, depth: int) -> None:
        self.nats = self.tokens = 0.0
        self.agree, self.drafts = [0.0] * depth, [0.0] * depth
        self.chain = [0.0] * depth  # all drafts up to and including this one agree
        self.top = [0.0] * 3
        self.top_count = 0.0
        self.usage: list[Tensor] = []
        self.spread: list[float] = []
        self.rows = 0.0
        self.experts = experts

    def routing(self, model: DemoModel) -> None:
        """Adds each sparse block's picks in its latest forward."""
        for i, block in enumerate(model.blocks()):
            if len(self.usage) <= i:
                self.usage.append(torch.zeros(self.experts))
                self.spread.append(0.0)
            picks, probs = block.picks, block.probs
            self.usage[i] += torch.bincount(picks.flatten(), minlength=self.experts)
            self.spread[i] += float(-(probs * probs.clamp_min(1e-12).log2()).sum())
        self.rows += len(model.blocks()[0].picks)


def _depths(model: DemoModel, tally: _Tally, ids: Tensor, own: Tensor, hidden: Tensor, start: int = 0) -> None:
    """Drafts along the text: draft d of row i is scored against the model's choice there.

    A chained draft feeds back the head's own output, and the text's token. ids [rows, time];
    positions before ``start`` serve as context only.
    """
    time = ids.shape[1]
    out, before = hidden, None
    for d in range(len(tally.agree)):
        out = model.mtp(model.model.embed_tokens(ids[:, 1 + d :]), out[:, : time - 1 - d])
        logits = model.logits(out)
        same = (logits.argmax(-1) == own[:, 1 + d :])[:, start:]
        before = same if before is None else before[:, : same.shape[1]] & same
        tally.agree[d] += float(same.sum())
        tally.chain[d] += float(before.sum())
        tally.drafts[d] += same.numel()
        if d == 0:
            best = logits[:, start:-1].topk(3, dim=-1).indices == ids[:, start + 2 :, None]
            for n in range(3):
                tally.top[n] += float(best[..., : n + 1].any(-1).sum())
            tally.top_count += best[..., 0].numel()


@torch.no_grad()
def full(model: DemoModel, chapters: list[Tensor], characters: int, depth: int = 3) -> dict[str, Any]:
    """All held-out chapters, each read whole from its start, then the model's own text.

    ``chapters``: token ids with the end-of-text id at both ends. The last one counts among the
    bits, not among ``characters``: the stricter of the two ways. Draft d of the head is scored
    along the true text, so a chained draft is fed the text's token, not its own.
    """
    model.eval()
    tally = _Tally(model.shape.experts, depth)
    for ids in (c[None] for c in chapters):
        hidden = model.model(ids[:, :-1])
        logits = model.logits(hidden)
        tally.nats += float(F.cross_entropy(logits[0], ids[0, 1:], reduction="sum"))
        tally.tokens += ids.shape[1] - 1
        _depths(model, tally, ids[:, :-1], logits.argmax(-1), hidden)
        model.mtp(model.model.embed_tokens(ids[:, 1:]), hidden)
        tally.routing(model)
    report = _report(tally, characters)
    report |= _own_text(model, chapters, depth)
    model.train()
    return report


def _own_text(model: DemoModel, chapters: list[Tensor], depth: int, tokens: int = 96) -> dict[str, Any]:
    """The head on greedy continuations of 16 held-out beginnings, 32 tokens each.

    There the text is the model's own choice, so "all drafts so far agree" is exactly what a
    greedy verification accepts. Small models repeat themselves, which flatters the figure.
    """
    ids = torch.stack([c[:32] for c in chapters if len(c) > 64][::3][:16])
    for _ in range(tokens):
        ids = torch.cat((ids, model.logits(model.model(ids)[:, -1:]).argmax(-1)), dim=1)
    hidden = model.model(ids)
    tally = _Tally(model.shape.experts, depth)
    _depths(model, tally, ids, model.logits(hidden).argmax(-1), hidden, start=31)
    accepted = [a / n for a, n in zip(tally.chain, tally.drafts, strict=True)]
    distinct = [len(set(row[32:].tolist())) / tokens for row in ids]
    return {"own_text_drafts_accepted": accepted, "own_text_distinct_tokens": sum(distinct) / len(distinct)}


def _report(tally: _Tally, characters: int) -> dict[str, Any]:
    share = [u / u.sum() for u in tally.usage]
    usage = [float(-(p * p.clamp_min(1e-12).log2()).sum()) for p in share]
    limit = math.log2(tally.experts)
    bits = tally.nats / math.log(2)
    return {
        "held_out_tokens": int(tally.tokens),
        "held_out_characters": characters,
        "bits_a_character": bits / characters,
        "bits_a_token": bits / tally.tokens,
        "head_agrees_with_model": [a / n for a, n in zip(tally.agree, tally.drafts, strict=True)],
        "head_whole_chain_agrees": [a / n for a, n in zip(tally.chain, tally.drafts, strict=True)],
        "true_token_in_head_top_1_2_3": [t / tally.top_count for t in tally.top],
        "routing_usage_entropy_bits": usage,
        "routing_usage_entropy_share": [u / limit for u in usage],
        "routing_token_entropy_bits": [s / tally.rows for s in tally.spread],
        "routing_entropy_limit_bits": limit,
    }


@torch.no_grad()
def generate(model: DemoModel, tokenizer: Tokenizer, prompt: str, tokens: int) -> str:
    """Greedy continuation, recomputed from the start each time: only to look at the text."""
    model.eval()
    ids = torch.tensor([[0, *tokenizer.encode(prompt).ids]])
    for _ in range(tokens):
        following = model.logits(model.model(ids)[:, -1]).argmax(-1)
        ids = torch.cat((ids, following[None]), dim=1)
    model.train()
    return tokenizer.decode(ids[0, 1:].tolist())
