"""`mtpd serve` on a real checkpoint, its real children and all, as a service manager runs it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from support.front_process import DEADLINE_S, FrontProcess


class ServedModel(FrontProcess):
    """Hardly any environment. What it says on its standard error goes to a file: a pipe that nobody reads fills."""

    def __init__(self, model: Path, **settings: str) -> None:
        self.model = model
        super().__init__(None, **settings)

    def spawn(self) -> "subprocess.Popen[str]":
        with (self.home / "errors").open("wb") as errors:
            return subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment(),
                start_new_session=True,
            )

    def errors(self, process: "subprocess.Popen[str] | None" = None) -> str:
        process = process if process is not None else self.process
        process.wait(DEADLINE_S)
        return (self.home / "errors").read_text(errors="replace")

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.home), **kept, **self.variables}

    def command(self) -> list[str]:
        flags = [x for name, value in self.settings.items() for x in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "mtp_daemon.cli", "serve", str(self.model), "--run-dir", str(self.run_dir)]
        return [*command, "--state-dir", str(self.home / "state"), *flags]


@cache
def greedy(model: Path, prompt: tuple[int, ...], count: int, chunk: int = 2048) -> list[int]:
    """Plain mlx-lm, everything resident: the ids that must come."""
    plain, _config = load_model(model, lazy=False, strict=False)
    steps = generate_step(mx.array(prompt), plain, max_tokens=count, prefill_step_size=chunk)
    return [int(token) for token, _ in steps]
