"""Find experts worth pinning on recorded routing, and prove them on routing held out.

Reads what `mtpd serve --record-routing FILE` wrote. Give a recording of other text with --held-out; without one the
last third of the recording's texts is held out. The pins are written only where they beat no pins by more than luck,
for `mtpd serve --pins`. `mtpd calibrate` does the same for a running service.
"""

import argparse
import json
from pathlib import Path

from mtp_loader.errors import BadRequest
from mtp_loader.policy.interface import expert_of, layer_of
from mtp_loader.policy.registry import DEFAULT, NAMES
from mtp_loader.predict.pins import SHARES, PinProof, Proving, facts, split
from mtp_loader.replay.read import read_trace
from mtp_loader.replay.table import maker
from mtp_loader.replay.trace import Trace
from mtp_protocol.arguments import real
from mtp_protocol.whole_file import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument("recording", type=Path, metavar="RECORDING", help="routing to choose pins on")
    parser.add_argument("--held-out", type=Path, metavar="RECORDING", help="routing of other text to prove them on")
    parser.add_argument(
        "--share", type=real(1e-3, 100), default=25.0, metavar="PERCENT", help="the pool, of all experts (25)"
    )
    parser.add_argument("--policy", default=DEFAULT, choices=NAMES, help=f"that the pins must improve ({DEFAULT})")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where to write the pins if they pay")
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    trace = read_trace(args.recording)
    if args.held_out is not None:
        other = read_trace(args.held_out)
        if (other.fingerprint, other.layers) != (trace.fingerprint, trace.layers):
            raise BadRequest(f"{args.held_out} is of another model than {args.recording}")
        learned, held_out = trace.forwards, other.forwards
        if len(learned) < 3 or not held_out:
            raise BadRequest("too little routing to choose pins and to prove them")
    else:
        learned, held_out = split(trace.forwards)
    proof = Proving(trace, maker(args.policy), trace.slots(args.share / 100.0)).prove(learned, held_out, SHARES)
    written = proof.pays and args.write is not None
    if written:
        _write(args.write, trace, proof)
    print(
        json.dumps(facts(proof) | {"written": written}, indent=1)
        if args.json
        else _text(proof, args.write if written else None)
    )
    return 0


def _write(path: Path, trace: Trace, proof: PinProof) -> None:
    pins = {"fingerprint": trace.fingerprint, "experts": [[layer_of(k), expert_of(k)] for k in proof.pins]}
    write_whole(path, json.dumps(pins).encode())


def _text(proof: PinProof, written: Path | None) -> str:
    if not proof.pins:
        return f"no pins: on the calibration text itself every share of pins lost (hits {proof.hit_rate_without:.2%})"
    what = f"{len(proof.pins)} pins, {proof.share:.0%} of the pool"
    rates = (
        f"hits {proof.hit_rate_with:.2%} with them, {proof.hit_rate_without:.2%} without, on held-out routing; "
        f"luck makes {proof.luck:.2%}"
    )
    if not proof.pays:
        return f"{what} do not pay: {rates}; nothing is written"
    return f"{what} pay: {rates}" + (f"; written to {written}" if written else "; use --write FILE to keep them")
