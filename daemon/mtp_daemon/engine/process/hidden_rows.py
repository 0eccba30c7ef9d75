"""`hidden = auto`: which of the target's hidden rows feed the head is measured once, and remembered."""

import json
import logging
from pathlib import Path

from mtp_daemon.engine.decode.decoder import Decoder
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.model import Loaded
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.mtp.hidden import Hidden
from mtp_daemon.engine.process.settings import EngineSettings
from mtp_daemon.engine.stream import ExpertStream
from mtp_daemon.engine.text import Vocabulary
from mtp_protocol.sampling import Sampling
from mtp_protocol.whole_file import write_whole

log = logging.getLogger(__name__)

FILE = "hidden.json"
TOKENS = 48
TEXT = "In the morning the two of them walked down to the harbour, where the boats had come in, and asked"


def choose_hidden(
    loaded: Loaded,
    stream: ExpertStream,
    head: MtpHead | None,
    vocabulary: Vocabulary,
    model: Path,
    settings: EngineSettings,
) -> tuple[Hidden, str]:
    """The rows, and why these. It never changes the output, only how many drafts are right."""
    if settings.hidden in ("post_norm", "pre_norm"):
        return ("pre_norm" if settings.hidden == "pre_norm" else "post_norm"), "as set"
    if head is None:
        return "post_norm", "there is no head"
    fingerprint = stream.geometry.fingerprint
    files = [model / FILE]
    if settings.state_dir is not None:  # other models keep theirs there too
        files.append(settings.state_dir / f"hidden-{fingerprint[:16]}.json")
    for file in files:
        if (known := _remembered(file, fingerprint)) is not None:
            return known, f"measured earlier ({file})"
    try:
        prompt = vocabulary.encode(TEXT, raw=True, system=None)
        rates = {hidden: _acceptance(Target(loaded.trunk, stream, head, "", hidden), prompt) for hidden in _BOTH}
    except RequestRefused as refusal:
        return "post_norm", f"not measured: {refusal}"
    best = max(_BOTH, key=rates.__getitem__)
    _remember(files, fingerprint, best, rates)
    return best, f"measured: {', '.join(f'{name} {rate:.0%}' for name, rate in rates.items())} of first drafts right"


_BOTH: tuple[Hidden, Hidden] = ("post_norm", "pre_norm")


def _acceptance(target: Target, prompt: tuple[int, ...]) -> float:
    """The share of right first drafts on an answer of the model's own, which is the same for both."""
    decoder = Decoder(target, DecodeSettings(speculation="chain", depth=1), prompt, Sampling())
    try:
        decoder.prefill(lambda done, total: None, lambda: False)
        left = TOKENS
        while left > 0:
            left -= len(decoder.round(left).ids)
        shares = decoder.stats()["acceptance_by_position"]
        return float(shares[0]) if shares else 0.0
    finally:
        decoder.close()


def _remembered(file: Path, fingerprint: str) -> Hidden | None:
    """Another model of the same name has another fingerprint, and its answer is not this one's."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["fingerprint"] != fingerprint:
            return None
        return next((hidden for hidden in _BOTH if hidden == known["hidden"]), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(files: list[Path], fingerprint: str, hidden: Hidden, rates: dict[Hidden, float]) -> None:
    """In the first place that can be written; where none can, it is measured again at the next start."""
    text = json.dumps({"fingerprint": fingerprint, "hidden": hidden, "acceptance": rates})
    for file in files:
        try:
            write_whole(file, text.encode())
            return
        except OSError as error:
            log.info("cannot remember hidden = %s in %s: %s", hidden, file, error)
