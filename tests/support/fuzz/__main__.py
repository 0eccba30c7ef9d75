"""A fuzzer that watches which branches an input takes: `PYTHONPATH=tests python -m support.fuzz TARGET [--seconds 60]`.

Needs atheris (`pip install atheris`; Linux on x86-64). An input that a target neither takes nor refuses as documented
is printed with its traceback and kept as `crash-…` in the current directory; the exit code then is not 0.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mtp_protocol", "mtp_loader", "mtp_daemon"]):
    from support.fuzz.targets import Target, targets


def planted(data: bytes) -> None:
    """A fault that random bytes do not meet in a day and watching branches meets in a second."""
    if data[:1] == b"m" and data[1:2] == b"t" and data[2:3] == b"p" and data[3:4] == b"d":
        raise AssertionError("the planted fault")


def main() -> None:
    known = {**targets(), "planted": Target(atheris.instrument_func(planted), (b"",))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(known))
    parser.add_argument("--seconds", type=int, default=60, help="for how long (60)")
    parser.add_argument("--corpus", type=Path, help="directory that keeps inputs of interest for the next run")
    given = parser.parse_args()
    target = known[given.target]
    corpus = given.corpus or Path(tempfile.mkdtemp(prefix="mtpd-t-corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={given.seconds}", "-timeout=5", "-rss_limit_mb=2048", "-print_final_stats=1"]
    if target.words:
        words = corpus.with_name(corpus.name + ".words")
        words.write_text("".join('"' + word.replace("\\", "\\\\") + '"\n' for word in target.words))
        limits.append(f"-dict={words}")
    atheris.Setup([sys.argv[0], *limits, str(corpus)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
