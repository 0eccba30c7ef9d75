"""Settings: one declaration, two ways in, every mistake named."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_daemon import config
from mtp_daemon.config import BY_NAME, SETTINGS, add_flags, flags_given, load_settings, read_file
from mtp_daemon.engine.decode.settings import WAYS
from mtp_daemon.engine.process.settings import read_settings
from mtp_daemon.errors import UserError
from mtp_daemon.sizes import PoolRequest, binary_bytes, parse_pool
from mtp_daemon.state_directory import default_state_directory, state_directory, unusable
from mtp_loader.service.settings import parse_settings


def written(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text)
    return path


def test_command_line_wins_over_file(tmp_path: Path) -> None:
    """Defaults, then the file, then the flags."""
    file = written(tmp_path, 'pool = "25%"\nmax-queue = 3\nverify = true\nreaders = "auto"\ntau = 1\n')
    parser = argparse.ArgumentParser()
    add_flags(parser)
    settings = load_settings(file, flags_given(parser.parse_args(["--pool", "1GiB", "--chunk", "64"])))
    assert (settings.pool, settings.max_queue, settings.verify, settings.chunk) == ("1GiB", 3, True, 64)
    assert settings.readers is None and settings.tau == 1.0 and settings.context == 8192


def test_help_shows_what_most_need_and_help_all_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting is in one of them, and the short one fits two screens."""
    for flag, least in (("--help", 0), ("--help-all", len(SETTINGS) - 1)):
        parser = argparse.ArgumentParser()
        add_flags(parser)
        with pytest.raises(SystemExit):
            parser.parse_args([flag])
        said = capsys.readouterr().out
        shown = [s.name for s in SETTINGS if f"{s.flag} " in said.split("show every setting")[1]]
        assert "pool" in shown and len(shown) >= least
        assert flag == "--help-all" or len(said.splitlines()) < 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pol = 1", "'pol'; did you mean 'pool'"),
        ("zzzzzz = 1", "settings are: model, pool"),
        ("max_queue = 0", "max_queue must lie in 1..10000"),
        ("max_queue = true", "max_queue must be 1..10000, not True"),
        ('max_queue = "3"', "max_queue must be"),
        ("beat_limit_s = nan", "beat_limit_s must lie in"),
        ('verify_mode = "both"', "verify_mode must be one of auto | batch | step"),
        ('pool = "0%"', "above 0%"),
        ('pool = "much"', "a pool is a size like"),
        ("pool = [", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    """An unknown key names the nearest valid one; a bad value its setting and range; the file is named too."""
    with pytest.raises(UserError) as error:
        read_file(written(tmp_path, text))
    assert said in str(error.value) and "config.toml" in str(error.value)


@pytest.mark.parametrize("text", ["\u0664GiB", "\u0662\u0665%", "\uff14GiB", "4\u0660"])
def test_digits_are_those_of_ascii(text: str) -> None:
    with pytest.raises(UserError, match="pool"):
        BY_NAME["pool"].read_text(text)
    with pytest.raises(UserError, match="context must be"):
        BY_NAME["context"].read_text("\u0664\u0660\u0669\u0666")


def test_a_depth_beyond_the_maximum_is_refused(tmp_path: Path) -> None:
    """Never silently another one: but a maximum alone moves where the controller starts."""
    with pytest.raises(UserError, match="depth 5 is more than max_depth 2"):
        load_settings(None, {"depth": 5, "max_depth": 2})
    with pytest.raises(UserError, match="more than max_depth"):
        load_settings(written(tmp_path, "depth = 9"), {})
    assert load_settings(None, {"max_depth": 1}).depth == 1
    assert load_settings(None, {"depth": 5, "max_depth": 2, "depth_controller": "constant"}).depth == 5


def test_a_state_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert unusable(tmp_path) is None and unusable(tmp_path / "new" / "state") is None
    for place in (tmp_path / "file", tmp_path / "file" / "state"):
        assert "is not a directory" in (unusable(place) or "")
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    assert unusable(dangling / "state") is not None


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.toml"):
        read_file(tmp_path / "nothing.toml")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_file_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Fuzz: whatever is in the file, the answer is settings or a UserError, never a traceback."""
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(data)
    try:
        read_file(path)
    except UserError:
        return


@given(st.sampled_from(SETTINGS), st.text(max_size=20))
def test_any_flag_text_is_a_value_or_a_clear_error(setting: config.Setting, text: str) -> None:
    """Fuzz: the same for the command line; the error names the setting."""
    try:
        value = setting.read_text(text)
    except UserError as error:
        assert setting.name in str(error)
    else:
        assert value is None or type(value) is setting.kind


def test_a_switch_is_on_or_off_too() -> None:
    """Some settings are off or on by name, so a user tries that on the others."""
    switch = next(setting for setting in SETTINGS if setting.name == "prefetch")
    assert [switch.read_text(text) for text in ("on", "true", "off", "false")] == [True, True, False, False]
    with pytest.raises(UserError, match="prefetch must be true or false, not 'yes'"):
        switch.read_text("yes")


def test_children_take_what_they_are_given() -> None:
    """Every setting that the front passes to a child is one that the child knows, with a value it accepts."""
    settings = load_settings(None, {})
    engine = read_settings(json.dumps(settings.for_child("engine")))
    assert engine.decode.chunk == settings.chunk and engine.context == settings.context
    loader = parse_settings(json.dumps({**settings.for_child("loader"), "widen": True}))
    assert loader.widen and loader.direct == settings.direct


def test_ways_to_draft_are_the_engine_s() -> None:
    """The list is written twice because the front must not import the engine; it is the same list."""
    assert config.WAYS == WAYS


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("auto", PoolRequest()),
        ("25%", PoolRequest(share=0.25)),
        ("100 %", PoolRequest(share=1.0)),
        ("4GiB", PoolRequest(nbytes=4 << 30)),
        ("1.5g", PoolRequest(nbytes=3 << 29)),
        ("500MB", PoolRequest(nbytes=500_000_000)),
        ("4096", PoolRequest(nbytes=4096)),
    ],
)
def test_pool_sizes(text: str, request_: PoolRequest) -> None:
    assert parse_pool(text) == request_


@pytest.mark.parametrize("text", ["", "-1", "0", "101%", "4 apples", "GiB", "1e9", "9999999999TiB", "9" * 400 + "GiB"])
def test_pool_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="pool"):
        parse_pool(text)


def test_binary_bytes() -> None:
    assert [binary_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.50 KiB", "5.00 GiB"]


TOML_VALUE = (
    st.booleans().map(lambda b: str(b).lower())
    | st.integers(-(2**63), 2**63 - 1).map(str)
    | st.floats().map(repr)
    | st.text(max_size=20).map(json.dumps)
    | st.just("[1, 2]")
    | st.just("{a = 1}")
)


@given(
    st.lists(st.tuples(st.sampled_from([s.name for s in SETTINGS]) | st.text(max_size=12), TOML_VALUE), max_size=4),
    st.binary(max_size=60),
    st.booleans(),
)
def test_any_file_is_settings_or_named_mistake(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], noise: bytes, noisy: bool
) -> None:
    """Fuzz: whatever the file holds, it gives settings that are in range, or a UserError that names the file."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    text = "".join(f"{key} = {value}\n" for key, value in lines).encode("utf-8", "surrogatepass")
    path.write_bytes(text + noise if noisy else text)
    try:
        values = read_file(path)
    except UserError as error:
        assert str(path) in str(error)
        return
    for name, value in values.items():
        setting = config.BY_NAME[name]
        assert value is None or setting.read(value) == value


def test_a_users_state_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a default a warm start never happens; "off" keeps nothing; a relative path is the command's, not ours."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_directory(None) == tmp_path / "mtpd"
    assert state_directory("off") is None
    monkeypatch.chdir(tmp_path)
    assert state_directory("here") == tmp_path / "here"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_directory("linux", tmp_path) == tmp_path / ".local" / "state" / "mtpd"
    assert default_state_directory("darwin", tmp_path) == tmp_path / "Library/Application Support/mtpd/state"
