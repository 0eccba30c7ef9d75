#!/usr/bin/env python3
"""Trains the demo model and writes it in Qwen3-Next's original Hugging Face layout.

Needs the project's ``train`` extra (torch, transformers, tokenizers, safetensors) and the
text: Debian's bible-kjv and bible-kjv-text, or what its ``bible`` program printed (--text).
Two CPU cores train it in about an hour; a run that stopped goes on with --resume.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from demo_model import data, evaluate
from demo_model.export import export
from demo_model.model import DemoModel
from demo_model.shape import Shape
from demo_model.train import Recipe, Run
from demo_model.workers import keep_memory


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    parser.add_argument("--minutes", type=float, default=70, help="time to train (default 70)")
    parser.add_argument("--text", type=Path, help="the printed text, if `bible` is not installed")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/last.pt")
    parser.add_argument("--export-only", action="store_true", help="only export OUT/best.pt")
    parser.add_argument("--workers", type=int, default=2, help="processes, one a core (2)")
    return parser.parse_args()


def finish(out: Path, recipe: Recipe, tokenizer: data.Tokenizer, held: list[str]) -> None:
    """Evaluates OUT/best.pt on all held-out chapters and exports it to OUT/hf."""
    state = torch.load(out / "best.pt", weights_only=True)
    model = DemoModel(Shape())
    model.load_state_dict(state["model"])
    characters = sum(len(text) for text in held)
    report = {
        "training_tokens": state["progress"]["tokens"],
        "training_steps": state["progress"]["step"],
        "wall_time_s": round(state["progress"]["seconds"]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": vars(recipe),
        **evaluate.full(model, data.encode(tokenizer, held), characters),
    }
    export(model, tokenizer, out / "hf", report)
    (out / "held_out.txt").write_text("\n".join(held), encoding="utf-8")
    print(json.dumps(report, indent=2))
    print(f"exported to {out / 'hf'}")


def main() -> int:
    options = arguments()
    keep_memory()
    torch.set_num_threads(1)
    recipe, out = Recipe(), options.out
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    try:
        training, held = data.split(data.chapters(data.read_dump(options.text)))
    except FileNotFoundError as error:
        print(f"train_demo: {error}", file=sys.stderr)
        return 2
    tokenizer = data.train_tokenizer(training, Shape().vocab)
    if options.export_only:
        finish(out, recipe, tokenizer, held)
        return 0
    run = Run(DemoModel(Shape()), recipe, out, options.minutes, options.workers)
    if options.resume:
        run.load(out / "last.pt")
    ids = data.stream(data.encode(tokenizer, training))
    held_ids = data.stream(data.encode(tokenizer, held))
    characters = sum(len(text) for text in held)
    print(f"{len(ids)} tokens to train on, {len(held_ids)} held out ({characters} characters)")

    def checked(line: str) -> None:
        print(line, flush=True)
        print(evaluate.generate(run.model, tokenizer, "Genesis 1\n\n1 In the", 24), flush=True)
        (out / "status.txt").write_text(line + "\n", encoding="utf-8")

    run.train(ids, held_ids, characters, checked)
    run.team.close()
    finish(out, recipe, tokenizer, held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
