"""Say what a model is: its experts' shape, what a token costs at worst, whether it has an MTP head and why not.

Reads headers only, so it takes a moment whatever the model's size.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from mtp_loader.progress import size_text
from mtp_loader.store import HeadFound, find_head, open_source, resolve_model
from mtp_loader.store.files import read_checkpoint
from mtp_loader.store.index import is_packed, read_index
from mtp_loader.store.layers import tensors_of, trunk_experts, trunk_tensors
from mtp_protocol.geometry import Bank, Quantisation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument("model", metavar="MODEL", help="a directory, or a Hugging Face id in the local cache")
    parser.add_argument("--mtp", type=Path, metavar="PATH", help="the MTP head's own file or directory")
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    facts = facts_of(resolve_model(args.model), args.mtp)
    print(json.dumps(facts, indent=1) if args.json else _text(facts))
    return 0


def facts_of(path: Path, head: Path | None) -> dict[str, Any]:
    """Everything `inspect` tells, as JSON's types; bytes throughout."""
    source = open_source(path, widen=False, head=head)
    found = find_head(path, head)
    geometry = source.geometry
    return {
        "path": str(path),
        "model_type": geometry.model_type,
        "packed": geometry.packed,
        "fingerprint": geometry.fingerprint,
        "layers": [
            {"layer": y.layer, "bank": y.bank, "experts": y.experts, "top_k": y.top_k, "mtp": y.is_head}
            for y in geometry.layers
        ],
        "banks": [_bank(b) for b in geometry.banks],
        "reads_per_expert": geometry.reads_per_expert,
        "bytes_per_expert": max(b.source_bytes for b in geometry.banks),
        "expert_bytes": geometry.expert_bytes,
        "worst_bytes_per_token": geometry.worst_bytes_per_token,
        "minimum_pool_bytes": geometry.minimum_bytes,
        "dense_bytes": dense_bytes(path),
        "mtp": isinstance(found, HeadFound),
        "mtp_why": found.where if isinstance(found, HeadFound) else found.why,
        "files": [p.name for p in source.files],
    }


def dense_bytes(path: Path) -> int:
    """Bytes of everything that is no routed expert of the trunk, as stored."""
    if is_packed(path):
        return sum(f.nbytes for f in read_index(path).files if f.name.startswith("model-dense"))
    checkpoint = read_checkpoint(path)
    routed = tensors_of(trunk_experts(checkpoint))
    return sum(t.nbytes for n, t in trunk_tensors(checkpoint).items() if n not in routed)


def _bank(bank: Bank) -> dict[str, Any]:
    return {
        "bank": bank.bank,
        "layers": list(bank.layers),
        "bytes_per_expert": bank.source_bytes,
        **{p: _quantisation(q) for p, q in (("gate", bank.gate), ("up", bank.up), ("down", bank.down))},
        "planes": [{"name": p.name, "dtype": p.source_dtype, "shape": list(p.shape)} for p in bank.planes],
    }


def _quantisation(q: Quantisation) -> str:
    return "none" if q.mode == "none" else f"{q.mode} {q.bits}-bit g{q.group_size}"


def _text(facts: dict[str, Any]) -> str:
    trunk = [y for y in facts["layers"] if not y["mtp"]]
    counts = sorted({f"{y['experts']} experts, top {y['top_k']}" for y in trunk})
    packed = "packed" if facts["packed"] else "not packed (see mtp-loader pack)"
    lines = [
        f"{facts['path']}",
        f"  model           {facts['model_type']}, {packed}",
        f"  MoE layers      {len(trunk)} of {' / '.join(counts)}",
        *(f"  experts         {_bank_text(b)}" for b in facts["banks"]),
        f"  all experts     {size_text(facts['expert_bytes'])}",
        f"  dense weights   {size_text(facts['dense_bytes'])}",
        f"  a miss          {facts['reads_per_expert']} read(s), {size_text(facts['bytes_per_expert'])}",
        f"  a token         reads {size_text(facts['worst_bytes_per_token'])} at worst, when every expert misses",
        f"  smallest pool   {size_text(facts['minimum_pool_bytes'])}",
        f"  MTP head        {'yes' if facts['mtp'] else 'no'}: {facts['mtp_why']}",
        f"  fingerprint     {facts['fingerprint']}",
    ]
    return "\n".join(lines)


def _bank_text(bank: dict[str, Any]) -> str:
    kinds = [bank["gate"], bank["up"], bank["down"]]
    kind = kinds[0] if len(set(kinds)) == 1 else f"gate {kinds[0]}, up {kinds[1]}, down {kinds[2]}"
    if kind == "none":
        kind = f"unquantised {bank['planes'][0]['dtype']}"
    return f"{size_text(bank['bytes_per_expert'])} each, {kind}, in {len(bank['layers'])} layer(s)"
