"""What every command hands out: a table for people, JSON that says how it was measured, and pictures."""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import psutil

from mtp_daemon.errors import UserError
from mtp_loader.chart import Chart, check_drawable, draw
from mtp_loader.errors import LoaderError

# Before our own measurement weighs in: commands import this as they begin.
_LOAD_AT_START = os.getloadavg()[0]
_BUSY_LOAD = 0.5


@dataclass(frozen=True)
class Report:
    """`results` of JSON's types and of dataclasses; `charts` by what tells them apart, the first one the main one."""

    results: Any
    text: str
    charts: Mapping[str, Chart] = field(default_factory=dict)


def add_output(parser: argparse.ArgumentParser, picture: str = "") -> None:
    """`picture` says in the help what is drawn; empty: nothing is."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="JSON with machine, date and arguments in place of the table; with FILE: there, and the table as well",
    )
    if picture:
        parser.add_argument("--picture", type=_picture, metavar="FILE", help=f"{picture}, as .svg or .png")
    else:
        parser.set_defaults(picture=None)


def emit(args: argparse.Namespace, command: str, report: Report) -> None:
    """Print, and write what was asked for. Raises UserError where a file cannot be written."""
    if args.json == "-":
        print(json.dumps(_whole(args, command, report), default=_plain))
    else:
        print(report.text)
    if _LOAD_AT_START > _BUSY_LOAD:
        print(
            f"the machine was busy at the start (load {_LOAD_AT_START:.1f}): measure again on a quiet one",
            file=sys.stderr,
        )
    try:
        if args.json not in (None, "-"):
            text = json.dumps(_whole(args, command, report), default=_plain, indent=1)
            Path(args.json).write_text(text + "\n")
        if args.picture is not None:
            for number, (name, chart) in enumerate(report.charts.items()):
                path = args.picture if number == 0 else args.picture.with_stem(f"{args.picture.stem}-{name}")
                draw(path, chart)
                print(f"picture: {path}", file=sys.stderr)
    except OSError as error:
        raise UserError(f"cannot write what was measured: {error}") from error


def machine() -> dict[str, Any]:
    """What ran this, and how busy it was: a figure without it means nothing."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_at_start": _LOAD_AT_START,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("mtpd", "mlx", "mlx-lm")},
    }


def _whole(args: argparse.Namespace, command: str, report: Report) -> dict[str, Any]:
    given = {k: v for k, v in vars(args).items() if k not in ("run", "command", "json", "picture")}
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine(),
        "arguments": given,
        "results": report.results,
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _picture(text: str) -> Path:
    try:
        check_drawable(Path(text))
    except LoaderError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)
