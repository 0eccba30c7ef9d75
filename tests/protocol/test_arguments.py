"""A wrong argument of any command ends with exit code 2 and one sentence that names it, before anything is done."""

from collections.abc import Callable

import pytest

import mtp_client.cli
import mtp_daemon.bench.cli
import mtp_daemon.cli
import mtp_loader.cli

BENCH, LOADER, CLIENT, DAEMON = (
    mtp_daemon.bench.cli.main,
    mtp_loader.cli.main,
    mtp_client.cli.main,
    mtp_daemon.cli.main,
)


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (BENCH, "stream demo --shares 0"),
        (BENCH, "stream demo --shares 1000"),
        (BENCH, "stream demo --disk-gbps nan"),
        (BENCH, "stream demo --disk-ratio -1"),
        (BENCH, "stream demo --repeats 0"),
        (BENCH, "stream demo --tokens 0"),
        (BENCH, "stream demo --prompt-tokens x"),
        (BENCH, "spec demo --depths 99"),
        (BENCH, "spec demo --depths 0"),
        (BENCH, "spec demo --disk-gbps inf"),
        (BENCH, "spec demo --disk-gbps -1"),
        (BENCH, "spec demo --pin-hot -3"),
        (BENCH, "spec demo --calibrate 0"),
        (BENCH, "io demo --threads 65"),
        (BENCH, "io demo --mb 0"),
        (BENCH, "serve demo --rate nan"),
        (BENCH, "serve demo --clients 0"),
        (BENCH, "serve demo --limit-s inf"),
        (BENCH, "synth nowhere --layers 0"),
        (BENCH, "synth nowhere --experts -1"),
        (BENCH, "synth nowhere --tokens 0"),
        (BENCH, "synth nowhere --group 0"),
        (LOADER, "replay nothing --bandwidth 0"),
        (LOADER, "replay nothing --bandwidth nan"),
        (LOADER, "replay nothing --compute-us-per-layer -1"),
        (LOADER, "replay nothing --jobs 0"),
        (LOADER, "replay nothing --reserve -1"),
        (LOADER, "replay nothing --share 0"),
        (LOADER, "replay nothing --share nan"),
        (LOADER, "calibrate nothing --share 0"),
        (LOADER, "calibrate nothing --share nan"),
        (CLIENT, "hello -n -1"),
        (CLIENT, "hello -n 1e3"),
        (CLIENT, "hello --depth 99"),
        (CLIENT, "hello -n \u0663"),
        (CLIENT, "hello --top-k x"),
        (CLIENT, "hello --temperature -1"),
        (CLIENT, "hello --temperature \u0663"),
        (CLIENT, "hello --seed 1.5"),
        (DAEMON, "stop --deadline nan"),
        (DAEMON, "calibrate --tokens 0"),
        (DAEMON, "calibrate --share 2"),
    ],
)
def test_a_number_out_of_its_range_is_named(
    main: Callable[[list[str]], int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.split()
    with pytest.raises(SystemExit) as left:
        main(given)
    assert left.value.code == 2
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1, "one sentence, and no usage that hides it"
    assert given[-2] in told.err and told.err.rstrip().endswith("--help")


@pytest.mark.parametrize("main", [BENCH, LOADER, CLIENT, DAEMON])
def test_a_flag_that_is_none_is_named(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--no-such-flag"])
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "--help" in said
