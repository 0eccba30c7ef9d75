"""What can go wrong in the engine, in one tree.

EngineError
├── RequestRefused      the user's mistake: the model or the request cannot be served; the text says what to do
├── EnvironmentFailed   disk, memory, a child process: the request fails, the engine goes on
│   ├── ExpertUnreadable   an expert's bytes could not be read; names the file and the offset
│   └── LoaderTimeout      the loader did not answer in time; names what was waited for
├── EngineStopping      the engine was told to leave while it waited
└── EngineBug           ours: the four slot rules or the messages were violated
"""

from typing import Literal

Kind = Literal["bad_request", "too_long", "unsupported", "environment", "internal"]


class EngineError(Exception):
    """`kind` is what a `Failed` message carries."""

    kind: Kind = "internal"


class RequestRefused(EngineError):
    kind: Kind = "unsupported"

    def __init__(self, text: str, kind: Literal["bad_request", "too_long", "unsupported"] = "unsupported") -> None:
        super().__init__(text)
        self.kind = kind


class EnvironmentFailed(EngineError):
    kind: Kind = "environment"


class ExpertUnreadable(EnvironmentFailed):
    def __init__(self, layer: int, expert: int, reason: str) -> None:
        super().__init__(f"expert {expert} of layer {layer} cannot be read: {reason}")
        self.layer, self.expert, self.reason = layer, expert, reason


class LoaderTimeout(EnvironmentFailed):
    pass


class EngineStopping(EngineError):
    kind: Kind = "environment"


class EngineBug(EngineError):
    kind: Kind = "internal"


def first_line(error: Exception) -> str:
    """What a library's error says first, or its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
