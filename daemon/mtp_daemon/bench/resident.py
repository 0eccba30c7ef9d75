"""mlx-lm with everything resident, in a process of its own, so that it can be measured in turn with the service.

`python -m mtp_daemon.bench.resident MODEL` reads one JSON object a line, `{"ids": […], "n": N}`, and answers each with
`{"ids": […], "prefill_s": …, "decode_s": …}`; `ready` comes first. The clock starts before the first forward; the
first token's forward belongs to the prefill, as in mlx-lm's own report.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from mtp_daemon.bench.reference import load_resident
from mtp_daemon.errors import EnvironmentFailure


@dataclass(frozen=True)
class Answer:
    """One run: the tokens, the time to the first of them and the time for the rest, in seconds."""

    ids: list[int]
    prefill_s: float
    decode_s: float

    @property
    def tok_per_s(self) -> float:
        return (len(self.ids) - 1) / self.decode_s if self.decode_s > 0 else 0.0


class Resident:
    """The child process. Close it: it holds the whole model. Raises EnvironmentFailure where it dies."""

    def __init__(self, model: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mtp_daemon.bench.resident", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def answer(self, ids: list[int], n: int) -> Answer:
        """Decode `n` tokens greedily after `ids`."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"ids": ids, "n": n}) + "\n")
        self._child.stdin.flush()
        return Answer(**self._read())

    def close(self) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise EnvironmentFailure(f"the resident model's process ended with {self._child.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def reference_answer(model: Path, ids: list[int], n: int) -> Answer:
    """What mlx-lm answers, by a process that ends afterwards."""
    resident = Resident(model)
    try:
        return resident.answer(ids, n)
    finally:
        resident.close()


def main(model_path: str) -> None:
    model, _tokenizer = load_resident(Path(model_path))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        first = started
        ids: list[int] = []
        for token, _ in generate_step(mx.array(request["ids"]), model, max_tokens=request["n"]):
            if not ids:
                first = time.monotonic()
            ids.append(int(token))
        ended = time.monotonic()
        print(json.dumps({"ids": ids, "prefill_s": first - started, "decode_s": ended - first}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
