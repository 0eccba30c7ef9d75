"""What is minimised: the text's own cross-entropy, the head's, and even routing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .model import DemoModel

EXTRA = 3  # tokens past a row's length that ``losses`` reads


@dataclass
class Losses:
    """``total`` is to be minimised; the others are for the progress line (nats, shares)."""

    total: Tensor
    text: float
    head: float
    balance: float
    agree: float


def _head_loss(logits: Tensor, targets: Tensor, own: Tensor) -> Tensor:
    """Half the text's token, half the model's own distribution: acceptance asks what the
    model will say next, and its distribution is a less noisy answer than one token."""
    count = own.shape[1]
    hard = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    logits = logits[:, :count]
    soft = logits.logsumexp(-1) - (own * logits).sum(-1)
    return 0.5 * hard + 0.5 * soft.mean()


def losses(model: DemoModel, block: Tensor, head_weight: float, balance_weight: float, chain: bool) -> Losses:
    """block [rows, length + EXTRA] of token ids. ``chain`` adds the head's second draft."""
    time = block.shape[1] - EXTRA
    hidden = model.model(block[:, :time])
    logits = model.logits(hidden)
    text = F.cross_entropy(logits.flatten(0, 1), block[:, 1 : time + 1].flatten())
    own = logits.detach().softmax(-1)
    embed = model.model.embed_tokens
    out = model.mtp(embed(block[:, 1 : time + 1]), hidden)
    drafts = model.logits(out)
    head = _head_loss(drafts, block[:, 2 : time + 2], own[:, 1:])
    balance = torch.stack([b.balance for b in model.blocks()]).mean()
    if chain:
        second = model.logits(model.mtp(embed(block[:, 2 : time + 2]), out))
        head = (head + 0.5 * _head_loss(second, block[:, 3 : time + 3], own[:, 2:])) / 1.5
    with torch.no_grad():
        agree = (drafts[:, :-1].argmax(-1) == own[:, 1:].argmax(-1)).float().mean()
    total = text + head_weight * head + balance_weight * balance
    figures = (float(x.detach()) for x in (text, head, balance, agree))
    return Losses(total, *figures)
