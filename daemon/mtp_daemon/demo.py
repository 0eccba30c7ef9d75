"""`make demo`: start the service on the shipped model, answer a prompt plainly and with speculation, compare, stop.

It drives the same two commands a user would, `mtpd` and `mtp-client`, so that what it shows is what they get.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtp_daemon.bench.serving import hit_rate, serving

PROMPT = "And it came to pass in those days, that"
# Sampled, with a seed: a model this small repeats itself when decoded greedily. The same seed gives the same text,
# with speculation or without.
SAMPLING = ("--temperature", "0.6", "--seed", "7")
POOL = "25%"
TOKENS = 120
# The client watches the service itself; once its output has ended it has nothing left to do.
LEAVE_TIMEOUT_S = 10.0


def main() -> int:
    """Exit code 0 when both answers are the same text."""
    say(f"starting the service: mtpd serve demo --pool {POOL}   (the pool holds a quarter of the experts)")
    with serving("demo", "--pool", POOL, shown=True) as service:
        say("plain decoding, one token a forward:")
        plain = answer(service.run_directory, depth=0)
        say("speculation: the model's own MTP head drafts 2 tokens, one forward verifies them:")
        drafted = answer(service.run_directory, depth=2)
        report(plain, drafted)
        print("\nOne run of each, plain first: the speeds prove nothing. `mtp-bench spec demo` measures them in turn.")
        if drafted["tok_per_s"] < plain["tok_per_s"]:
            print("\nDepth 2 was slower here: a verify costs this machine more than the drafts save. A service left to")
            print("itself measures that and stops drafting.")
    if plain["text"] != drafted["text"]:
        print("the two texts differ: that is a fault, please report it", file=sys.stderr)
        return 1
    say("the same text, token for token. To go on: . .venv/bin/activate, then mtpd serve demo, and in another terminal")
    print('   (activated as well): mtp-client "your prompt". A model of your own: README.md')
    return 0


def say(line: str) -> None:
    print(f"\n== {line}", flush=True)


def answer(run_directory: Path, depth: int) -> dict[str, Any]:
    """Stream one answer to the terminal; its text and stats."""
    command = [
        sys.executable, "-m", "mtp_client.cli", PROMPT, "-n", str(TOKENS), "--json", "--run-dir", str(run_directory),
        "--speculation", "chain" if depth else "off", "--depth", str(depth), *SAMPLING,
    ]  # fmt: skip
    print(PROMPT, end="", flush=True)
    text, finished = "", None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        for line in client.stdout:
            event = json.loads(line)
            if event["event"] == "tokens":
                text += event["text"]
                print(event["text"], end="", flush=True)
            elif event["event"] == "finished":
                finished = event
            elif event["event"] == "failed":
                raise RuntimeError(f"the request failed: {event['text']}")
        client.wait(LEAVE_TIMEOUT_S)
    print()
    if finished is None:
        raise RuntimeError("the answer ended without a word")
    return {"text": text, "tokens": finished["usage"]["completion_tokens"], **finished["stats"]}


def report(plain: dict[str, Any], drafted: dict[str, Any]) -> None:
    """The figures of both answers side by side."""
    print(f"\n{'':28}{'plain':>12}{'depth 2':>12}")
    for name, value in FIGURES.items():
        print(f"{name:28}{value(plain):>12}{value(drafted):>12}")


def _acceptance(stats: dict[str, Any]) -> str:
    by_position = stats.get("acceptance_by_position") or []
    return " ".join(f"{a:.0%}" for a in by_position) or "-"


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "tokens a second": lambda s: f"{s['tok_per_s']:.1f}",
    "tokens a round": lambda s: f"{s.get('tokens_per_round', 1.0):.2f}",
    "acceptance by position": _acceptance,
    "hit rate": lambda s: f"{hit_rate(s):.1%}",
    "misses a token": lambda s: f"{s['misses'] / max(1, s['tokens']):.2f}",
    "read from disk": lambda s: f"{s['bytes_read'] / 1e6:.1f} MB",
}

if __name__ == "__main__":
    sys.exit(main())
