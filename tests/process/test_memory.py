"""What serving and packing hold in memory, and what they touch on disk: real processes, measured from outside."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import psutil
import pytest

from mtp_daemon.bench.routing_plan import random_plan
from mtp_daemon.bench.synth import Shape, write
from mtp_daemon.bench.word_tokenizer import write_word_tokenizer
from mtp_protocol.client_messages import Finished, Tokens
from support.checkpoints import Head, make_checkpoint
from support.served_model import ServedModel
from support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SHAPE = Shape(layers=1, experts=64, top_k=4, hidden=512, inner=512, tokens=512)
LAYERS = 16
EXPERT_BYTES = LAYERS * SHAPE.total_expert_bytes
LAYER_BYTES = SHAPE.total_expert_bytes
SLACK_BYTES, PACK_SLACK_BYTES = 300 << 20, 500 << 20
PACK = """
import sys
from mtp_loader.cli import main
sys.argv = ["mtp-loader", "pack", *sys.argv[1:]]
code = main()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, int(peak.split()[1]) * 1024)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Half a gigabyte of experts: all of them would break every bound here. One layer's weights, in every layer."""
    directory = tmp_path_factory.mktemp("large") / "model"
    plan = random_plan(1, SHAPE.tokens, SHAPE.experts, SHAPE.top_k, seed=0)
    write(directory, SHAPE, plan, "random", 0, lambda done, total: None, write_word_tokenizer)
    first = mx.load(str(directory / "model-00001.safetensors"))
    assert isinstance(first, dict)
    for layer in range(1, LAYERS):
        renamed = {name.replace("layers.0.", f"layers.{layer}."): tensor for name, tensor in first.items()}
        mx.save_safetensors(str(directory / f"model-{layer + 1:05}.safetensors"), renamed)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
    yield directory
    shutil.rmtree(directory)


class Peak:
    """The largest sum of some processes' PSS, looked at every 50 ms: a page that two map counts once."""

    def __init__(self, *pids: int) -> None:
        self.bytes = 0
        self._pids = pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            self.bytes = max(self.bytes, sum(pss(pid) for pid in self._pids))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no Pss")


def found_children(front: ServedModel) -> list[int] | None:
    children = front.descendants()
    return [child.pid for child in children] if len(children) == 2 else None


def ask(front: ServedModel, prompt: tuple[int, ...], count: int) -> Finished:
    with front.client() as client:
        for event in client.generate(prompt_ids=prompt, max_tokens=count):
            if isinstance(event, Finished):
                return event
    raise AssertionError("the answer ended without a word")


def test_engine_and_loader_stay_within_dense_pool_cache_and_slack(large: Path) -> None:
    """A model four times its pool; from the first moment, through loading, a long prompt and decoding, the peak
    of both together stays below dense + pool + KV + 300 MB. Loading all experts, even for a moment, would show.
    """
    with ServedModel(large, pool="25%", context="1024") as front:
        pids = until("both children", lambda: found_children(front))
        with Peak(*pids) as peak:
            front.wait_ready()
            finished = ask(front, tuple(i % SHAPE.tokens for i in range(96)), 8)
        status = front.status()
    facts, pool = status["engine_facts"], status["pool"]["bytes"]
    cache = facts["kv_bytes_per_token"] * 1024 + facts["state_bytes"]
    assert finished.usage.completion_tokens == 8 and finished.stats["misses"] > 0
    assert {child["pid"] for child in status["children"].values()} == set(pids), "a child died on the way"
    assert status["pool"]["expert_bytes"] == EXPERT_BYTES >= 3.9 * pool
    bound = facts["dense_bytes"] + pool + cache + SLACK_BYTES
    print(f"peak {peak.bytes / 1e6:.1f} MB; dense, pool and caches {(bound - SLACK_BYTES) / 1e6:.1f} MB")
    assert pool < peak.bytes <= bound
    assert bound < EXPERT_BYTES + facts["dense_bytes"], "the bound would not show a model that is loaded whole"


@pytest.mark.parametrize("more", [(), ("--q-bits", "8")], ids=["as-it-is", "quantising"])
def test_the_packer_holds_one_layer(large: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    """The packer's peak is at most one layer and 500 MB, and in fact far from the model: a layer at a time.

    The second bound is ours: what the imports take, the first bound would hide on a model of this size.
    """
    source = large if not more else plain_model(tmp_path)
    command = [sys.executable, "-c", PACK, str(source), str(tmp_path / "packed"), *more]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    code, peak = (int(word) for word in said.split()[-2:])
    files = sum(f.stat().st_size for f in source.glob("*.safetensors"))
    layer = max(f.stat().st_size for f in source.glob("*.safetensors"))
    print(f"peak {peak / 1e6:.1f} MB, one layer {layer / 1e6:.1f} MB, the model {files / 1e6:.1f} MB")
    assert code == 0
    assert peak <= layer + PACK_SLACK_BYTES
    assert peak <= 3 * layer + (150 << 20)
    assert 3 * layer + (150 << 20) < files, "the bound would not show a model that is read whole"


def plain_model(directory: Path) -> Path:
    """320 MB of unquantised float32 experts, to be quantised on the way."""
    shape = Shape(layers=10, experts=10, top_k=2, hidden=512, inner=512, tokens=512, bits=0)
    plan = random_plan(shape.layers, shape.tokens, shape.experts, shape.top_k, seed=0)
    write(directory / "plain", shape, plan, "random", 0, lambda done, total: None, write_word_tokenizer)
    return directory / "plain"


def test_serving_writes_nothing_and_maps_no_expert_file(tmp_path: Path) -> None:
    """Over 500 tokens, logs and statistics below 1 MB are all that reaches a disk; experts are read, not mapped."""
    model = make_checkpoint(tmp_path / "tiny", "qwen3_next", head=Head())
    before = sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in model.iterdir())
    with ServedModel(model, pool="30%").wait_ready() as front:
        ask(front, (3, 5, 7), 4)
        pids = [front.process.pid, *(front.child_pid(role) for role in ("engine", "loader"))]
        written, kept = disk_writes(pids), files_under(front.home)
        got = 0
        with front.client() as client:
            while got < 500:
                events = client.generate(prompt_ids=(got % 500, 9, 4), max_tokens=125)
                got += sum(len(event.ids) for event in events if isinstance(event, Tokens))
        mapped = {
            m.path for pid in pids[1:] for m in psutil.Process(pid).memory_maps() if m.path.startswith(str(model))
        }
        assert mapped == set()
        assert disk_writes(pids) - written < 1_000_000
        assert files_under(front.home) - kept < 1_000_000
        assert front.stop() == 0
        assert files_under(front.home) - kept < 1_000_000, "what is saved on the way out counts too"
    assert before == sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in model.iterdir())


def disk_writes(pids: list[int]) -> int:
    return sum(psutil.Process(pid).io_counters().write_bytes for pid in pids)


def files_under(directory: Path) -> int:
    return sum(f.lstat().st_size for f in directory.rglob("*") if f.is_file())
