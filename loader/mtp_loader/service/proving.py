"""`python -m mtp_loader.service.proving JOB`: which pins pay, worked out beside a running loader, never by hand.

JOB is `{"recording": PATH, "policy": …, "slots": {bank: n}, "reserve": n | null, "shares": […]}`. The answer is one
JSON object on standard output: `{"pays": …, "experts": [[layer, expert], …], …}`, or `{"refused": why}`. Standard input
is a lifeline: at its end this process leaves at once. It takes the processor only when nobody else wants it.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtp_loader.errors import BadRequest
from mtp_loader.policy.interface import expert_of, layer_of
from mtp_loader.predict.pins import Proving, facts, split, texts
from mtp_loader.replay.recording import read_recording
from mtp_loader.replay.table import maker

_NICE = 15


def main(argv: list[str]) -> int:
    """The exit code; a bug ends with a traceback on standard error."""
    os.nice(_NICE)
    threading.Thread(target=_leave_with_the_loader, daemon=True).start()
    try:
        answer = prove(json.loads(argv[0]))
    except BadRequest as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer))
    return 0


def prove(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job's answer. Raises BadRequest for too little routing."""
    trace = read_recording(Path(job["recording"]))
    learned, held_out = split(trace.forwards)
    slots = {int(bank): int(n) for bank, n in job["slots"].items()}
    proof = Proving(trace, maker(job["policy"]), slots, job["reserve"]).prove(learned, held_out, job["shares"])
    return {
        **facts(proof),
        "experts": [[layer_of(key), expert_of(key)] for key in proof.pins] if proof.pays else [],
        "policy": job["policy"],
        "slots": sum(slots.values()),
        "learned": {"texts": len(texts(learned)), "forwards": len(learned)},
        "held_out": {"texts": len(texts(held_out)), "forwards": len(held_out)},
    }


def _leave_with_the_loader() -> None:
    while os.read(0, 4096):  # no lock of Python's: this thread is still here when the process ends
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
