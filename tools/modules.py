"""Writes docs/modules.md: a line for each module, taken from its docstring, so that there is one place to keep right.

Run from anywhere: `python tools/modules.py`; `--check` only says whether the file is current (exit code 1 if not).
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("protocol/mtp_protocol", "client/mtp_client", "loader/mtp_loader", "daemon/mtp_daemon")
PAGE = ROOT / "docs" / "modules.md"
HEAD = "# Modules, a line each\n\nWritten by `python tools/modules.py` from the modules' own docstrings.\n"


def page() -> str:
    """The whole text of docs/modules.md."""
    parts = [HEAD]
    for package in PACKAGES:
        for directory in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            parts.append(f"\n## {directory.relative_to(ROOT)}\n\n{summary(directory / '__init__.py')}\n\n")
            modules = sorted(p for p in directory.glob("*.py") if p.name not in ("__init__.py", "__main__.py"))
            if modules:
                parts.append("| module | what it is |\n|---|---|\n")
                parts += [f"| `{path.stem}` | {summary(path)} |\n" for path in modules]
    return "".join(parts)


def summary(path: Path) -> str:
    """The first line of a module's docstring; raises ValueError where there is none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    return text.splitlines()[0].replace("|", "\\|")


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/modules.md is out of date: run python tools/modules.py")
