"""Other programs' figures, to be drawn beside ours."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtp_daemon.errors import UserError

FORMAT = """\
--peers FILE holds a JSON list of lines measured on this machine and this checkpoint, each by pool share in percent:
  [{"name": "other 1.2, warm", "tok_per_s": [[100, 5.1], [50, 4.4]]},
   {"name": "other 1.2, cold", "of_resident": [[50, 0.91], [25, 0.75]]}]
`of_resident` is the share of mlx-lm's own speed with everything resident; it is drawn times what we measure of that.
"""


def read_peers(path: Path, resident_tok_per_s: float) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Name to (share in percent, tokens a second), shares rising. Raises UserError naming the entry that is wrong."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the peers in {path}: {error}") from error
    if not isinstance(entries, list):
        raise UserError(f"{path} must hold a list of lines, see mtp-bench stream --help")
    return dict(_line(path, entry, resident_tok_per_s) for entry in entries)


def _line(path: Path, entry: Any, resident_tok_per_s: float) -> tuple[str, list[tuple[float, float]]]:
    factors = {"tok_per_s": 1.0, "of_resident": resident_tok_per_s}
    try:
        kind = next(k for k in factors if k in entry)
        points = sorted((float(share), float(value) * factors[kind]) for share, value in entry[kind])
        return str(entry["name"]), points
    except (StopIteration, KeyError, TypeError, ValueError):
        wanted = "a name, and tok_per_s or of_resident as [share, value] pairs"
        raise UserError(f"{path}: a line has {wanted}, not {json.dumps(entry)[:80]}") from None
