"""From a model directory and a pool to a model that answers."""

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import zmq

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.depth import make_controller
from mtp_daemon.engine.device import use_device, wire
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.model import Loaded, flat, load_streamed
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.mtp.load import LoadedHead, load_head
from mtp_daemon.engine.process.hidden_rows import choose_hidden
from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_daemon.engine.process.serving import Serving
from mtp_daemon.engine.process.settings import EngineSettings
from mtp_daemon.engine.slot_verifier import SlotVerifier
from mtp_daemon.engine.stream import ExpertStream, StreamSettings
from mtp_daemon.engine.text import Vocabulary, load_vocabulary
from mtp_loader.store.open import open_source
from mtp_loader.store.whole_files import check_whole_files
from mtp_protocol.engine_messages import Pool

log = logging.getLogger(__name__)

POOL_S = 600.0  # the loader reads every header first, and the front may ask the user's disk for its speed


def bring_up(
    context: "zmq.Context[Any]",
    model: Path,
    epoch: int,
    settings: EngineSettings,
    mailbox: Mailbox,
    activity: Activity,
) -> tuple[Serving, int]:
    """Everything that a request needs, and the pool's generation.

    Raises RequestRefused for a model that cannot be served, LoaderError for damaged files, EnvironmentFailed,
    EngineStopping; OSError from files.
    """
    backend = use_device()
    pool, region_fd = mailbox.wait_for_pool(POOL_S)
    verifier = _verifier(model, settings, pool, region_fd)
    stream = ExpertStream(
        context, mailbox.life, epoch, pool.geometry, pool.layout, region_fd, _stream_settings(settings), verifier
    )
    stats = stream.stats
    loaded, vocabulary, head = _load(model, stream, settings, activity)
    activity.busy = False  # the loader may take its time, and is the front's to watch
    stream.join()
    activity.counters = lambda: stats.host_reads + stats.demands  # from here on a count, which never falls
    activity.busy = True
    hidden, hidden_why = choose_hidden(loaded, stream, head.head, vocabulary, model, settings)
    target = Target(loaded.trunk, stream, head.head, head.why, hidden)
    longest = loaded.facts["context"] or settings.context
    own = {"backend": backend, "context": longest, "hidden": hidden, "hidden_why": hidden_why}
    facts = {**loaded.facts, **_facts(loaded, head, vocabulary), **own}
    controller = make_controller(settings.depth, loaded.facts["model_type"])
    most = min(settings.context, longest)
    caches = loaded.facts["kv_bytes_per_token"] * most + loaded.facts["state_bytes"]
    wire(pool.layout.nbytes + loaded.facts["dense_bytes"] + caches)
    return Serving(settings, target, stream, vocabulary, most, controller, facts), pool.layout.generation


def _load(
    model: Path, stream: ExpertStream, settings: EngineSettings, activity: Activity
) -> tuple[Loaded, Vocabulary, LoadedHead]:
    """All but the experts, checked first; leaves `activity` busy. Raises as `bring_up` does."""
    stats = stream.stats
    # What moves within one step: a layer's read, and, while dense weights are checked and loaded, their bytes.
    checked: list[int] = []
    activity.counters = lambda: stats.host_reads + stats.demands + len(checked) + mx.get_active_memory()
    activity.busy = True
    check_whole_files(model, checked.append)
    loaded = load_streamed(model, stream)
    vocabulary = load_vocabulary(model, loaded.config)
    return loaded, vocabulary, _head(loaded, stream, model, settings)


def _facts(loaded: Loaded, head: LoadedHead, vocabulary: Vocabulary) -> dict[str, Any]:
    """What status and limits need to know of model, head and tokenizer, beside what loading told."""
    return {
        "adapter": _unadapted(loaded),
        "mtp": head.head is not None,
        "head_bytes": 0 if head.head is None else _bytes_of(head.head),
        "mtp_why": head.why if head.head is None else "",
        "chat_template": vocabulary.chat_template,
        "eos": sorted(vocabulary.eos),
        "vocabulary": vocabulary.size,
    }


def _bytes_of(module: MtpHead) -> int:
    """Of its dense weights: its experts are in the pool."""
    parameters: Any = module.parameters()  # type: ignore[no-untyped-call]
    return sum(v.nbytes for v in flat(parameters).values())


def _stream_settings(settings: EngineSettings) -> StreamSettings:
    limits = Limits(loader_s=settings.loader_limit_s)
    return StreamSettings(settings.hints_ahead, verify_slots=settings.verify_slots, limits=limits)


def _verifier(model: Path, settings: EngineSettings, pool: Pool, region_fd: int) -> SlotVerifier | None:
    if not settings.verify_slots:
        return None
    widened = any(p.dtype != p.source_dtype for bank in pool.geometry.banks for p in bank.planes)
    return SlotVerifier(region_fd, pool.layout, open_source(model, widen=widened, head=settings.head))


def _head(loaded: Loaded, stream: ExpertStream, model: Path, settings: EngineSettings) -> LoadedHead:
    if not settings.mtp:
        return LoadedHead(None, "MTP is switched off (mtp = false)")
    head = load_head(loaded.model, stream, model, settings.head)
    if head.head is None:
        log.info("plain decoding: %s", head.why)
    return head


def _unadapted(loaded: Loaded) -> str:
    """What status says of block classes that stream, but with neither overlap nor hints; nothing when there is none."""
    names = ", ".join(loaded.installed.unadapted)
    return f"none for {names}: its misses do not overlap with compute and give no hints" if names else ""
