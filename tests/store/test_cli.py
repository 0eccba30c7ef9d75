"""`mtp-loader` as a user meets it: what it prints and how it exits."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtp_loader.cli import COMMANDS, main
from mtp_loader.errors import NoSuchModel
from mtp_loader.store import open_source, resolve_model
from support.checkpoints import Head, make_checkpoint


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cli") / "m", "qwen3_next", quant="q4g64", head=Head())


@pytest.fixture(scope="module")
def packed(source: Path) -> Path:
    assert main(["pack", str(source), str(source.parent / "packed")]) == 0
    return source.parent / "packed"


def test_inspect_json_counts_what_a_token_costs(source: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(source), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(packed), "--json"]) == 0
    store = json.loads(capsys.readouterr().out)
    assert (plain["reads_per_expert"], store["reads_per_expert"]) == (9, 1)
    assert (plain["packed"], store["packed"], plain["mtp"], store["mtp"]) == (False, True, True, True)
    expert = (64 * 128 * 3) // 2 + 3 * 64 * 2 * 2 * 4  # 4-bit weights, one scale and bias (f32) in 64 weights
    assert store["bytes_per_expert"] == plain["bytes_per_expert"] == 3 * 64 * 128 * 4  # the head is unquantised
    assert store["banks"][0]["bytes_per_expert"] == expert
    assert store["worst_bytes_per_token"] == plain["worst_bytes_per_token"] == 4 * 2 * expert


def test_inspect_says_why_there_is_no_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64", head=Head("separate"))
    assert main(["inspect", str(path)]) == 0
    (line,) = [y for y in capsys.readouterr().out.splitlines() if "MTP head" in y]
    assert "no: the config declares 1 MTP layer(s)" in line
    assert main(["pack", str(path), str(tmp_path / "packed")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "packed")]) == 0
    assert "no: the config declares 1 MTP layer(s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "at", "says"),
    [
        ("experts-00001.bin", 3 * 16384 + 5, "layer 0, expert 3"),
        ("model-dense-00001.safetensors", -1, "model-dense-00001.safetensors: its checksum"),
        ("mtp-dense.safetensors", -1, "mtp-dense.safetensors: its checksum"),
        ("tokenizer.json", 1, "tokenizer.json: its checksum"),
    ],
)
def test_verify_names_what_is_wrong(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, at: int, says: str
) -> None:
    store = Path(shutil.copytree(packed, tmp_path / "store"))
    assert main(["verify", str(store)]) == 0
    raw = bytearray((store / file).read_bytes())
    raw[at] ^= 1
    (store / file).write_bytes(raw)
    capsys.readouterr()
    assert main(["verify", str(store)]) == 1
    errors = capsys.readouterr().err
    assert says in errors
    assert "1 part(s) damaged" in errors


def test_padding_is_not_part_of_a_record(packed: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(packed, tmp_path / "store"))
    raw = bytearray((store / "experts-00001.bin").read_bytes())
    raw[16383] ^= 1  # the last byte of a record of 15,360
    (store / "experts-00001.bin").write_bytes(raw)
    assert main(["verify", str(store)]) == 0


def test_verify_of_a_plain_checkpoint_checks_its_shape(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(source)]) == 0
    assert "no checksums" in capsys.readouterr().out
    cut = Path(shutil.copytree(source, tmp_path / "cut"))
    os.truncate(cut / "model.safetensors", 100_000)
    assert main(["verify", str(cut)]) == 1
    assert "has 100000 bytes but should have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["inspect", "/no/such/model"], 2, "no such directory"),
        (["inspect", "someone/some-model"], 2, "mtp-loader fetch someone/some-model"),
        (["fetch", "not an id"], 2, "not a Hugging Face id"),
        (["fetch", "someone/some-model"], 1, "HF_HUB_OFFLINE"),
        (["pack", "{source}", "{source}"], 2, "not empty"),
        (["pack", "{source}", "{source}/x", "--q-bits", "7"], 2, "--q-bits 7"),
        (["pack", "{source}", "{source}/x", "--mtp", "/no/head"], 2, "/no/head"),
        (["pack", "{packed}", "{source}/x"], 2, "packed store already"),
    ],
)
def test_mistakes_are_named_and_exit_2(
    source: Path,
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(source.parent / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    filled = [a.format(source=source, packed=packed) for a in arguments]
    assert main(filled) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_help_teaches_and_imports_nothing_heavy() -> None:
    """`mtp-loader --help` must not wait for MLX or transformers."""
    script = (
        "import sys\nfrom mtp_loader.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'mlx', 'mlx_lm', 'numpy', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "exit codes" in done.stdout
    assert all(name in done.stdout for name in COMMANDS)


def test_the_reading_side_never_imports_mlx(source: Path, packed: Path) -> None:
    """The loader service opens sources; MLX in it would cost memory and a second at every start."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom mtp_loader.store import find_head, open_source, resolve_model\n"
        "for p in sys.argv[1:]:\n    open_source(resolve_model(p), widen=True)\n    find_head(Path(p))\n"
        "heavy = {'mlx', 'mlx_lm', 'numpy', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, source, packed], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_model_of_the_cache_is_found_by_its_id(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--someone--some-model"
    snapshot = Path(shutil.copytree(source, repository / "snapshots" / ("a" * 40)))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert resolve_model("someone/some-model") == snapshot
    assert resolve_model(str(source)) == source
    shutil.copytree(source, tmp_path / "outside")
    for revision in ("../../outside", "..", ""):
        (repository / "refs" / "main").write_text(revision)
        (repository / "config.json").write_text("{}")
        with pytest.raises(NoSuchModel, match="mtp-loader fetch"):
            resolve_model("someone/some-model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoSuchModel, match="holds no model"):
        resolve_model(str(tmp_path / "empty"))
    with pytest.raises(NoSuchModel, match="is a file"):
        resolve_model(str(source / "config.json"))


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take no such name")
def test_a_directory_whose_name_is_not_utf8_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    """MLX cannot open a file there; that is said before anything is started."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/od\xff"))
    shutil.copytree(source, odd)
    with pytest.raises(NoSuchModel, match="not UTF-8"):
        resolve_model(str(odd))


def test_the_shipped_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` means the same to every command; a directory of that name goes before it."""
    monkeypatch.chdir(tmp_path)
    shipped = open_source(resolve_model("demo"), widen=False).geometry
    assert shipped.packed and any(layer.is_head for layer in shipped.layers)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").touch()
    assert resolve_model("demo") == Path("demo")
