"""What a request is answered with: the loaded model and everything that outlives a request. Owned by the MLX thread."""

from dataclasses import dataclass
from typing import Any

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.depth import DepthController
from mtp_daemon.engine.process.settings import EngineSettings
from mtp_daemon.engine.stream import ExpertStream
from mtp_daemon.engine.text import Vocabulary


@dataclass
class Serving:
    """`controller` is the depth controller of the last request in the service's own way: the next is its successor.

    `context` in tokens.
    """

    settings: EngineSettings
    target: Target
    stream: ExpertStream
    vocabulary: Vocabulary
    context: int
    controller: DepthController
    facts: dict[str, Any]
