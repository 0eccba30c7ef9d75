"""Client and front: submit, follow and cancel requests; ask after and steer the service.

Every `Submit` and `Attach` is answered by `Accepted` or `Failed`, and every accepted request ends in exactly one of
`Finished` and `Failed`. Every other message from a client is answered by one `Done` or `Failed` that carries its `ref`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from mtp_protocol.bounds import MAX_ITEMS, Most
from mtp_protocol.codec import Codec
from mtp_protocol.sampling import Sampling

MAX_STOPS = 16
MAX_PINS = 1 << 16  # more experts than any model has
MAX_SHARES = 16

Reason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Hello:
    """First message of a client; `client` names the program for the log."""

    ref: int
    client: str


@dataclass(frozen=True)
class Submit:
    """Answer a prompt. Exactly one of `prompt` (text) and `prompt_ids` is given.

    `raw` passes the text as it is; otherwise the model's chat template is applied when it has one, with `system` first.
    `max_tokens` None means the service's default. `speculation` and `depth` override the service's way to draft for
    this request (None: the service's). `keep_s` holds a request and its log that long after its client is gone.
    """

    ref: int
    prompt: str | None = None
    prompt_ids: Annotated[tuple[int, ...], Most(MAX_ITEMS)] | None = None
    raw: bool = False
    system: str | None = None
    max_tokens: int | None = None
    stop: Annotated[tuple[str, ...], Most(MAX_STOPS)] = ()
    sampling: Sampling = field(default_factory=Sampling)
    speculation: str | None = None
    depth: int | None = None
    keep_s: float = 0.0


@dataclass(frozen=True)
class Attach:
    """Follow a kept request again from token `position` on."""

    ref: int
    request: bytes
    position: int = 0


@dataclass(frozen=True)
class Cancel:
    ref: int
    request: bytes


@dataclass(frozen=True)
class Status:
    ref: int


@dataclass(frozen=True)
class Resize:
    """Make the pool `pool` large, written as on the command line: "4GiB", "25%" or "auto"."""

    ref: int
    pool: str


@dataclass(frozen=True)
class Pin:
    """Hold these experts, (layer, expert) pairs, in the pool; an empty tuple pins nothing."""

    ref: int
    experts: Annotated[tuple[tuple[int, int], ...], Most(MAX_PINS)]


@dataclass(frozen=True)
class Calibrate:
    """Find out which pins pay on the routing of the last `last_s` seconds (None: all remembered), and hold them.

    `shares` of the pool are tried (none: the service's own). What was pinned before is held no more, whether the new
    pins pay or none do. Answered when done; a client that leaves before has it stopped, and no pin is changed.
    """

    ref: int
    last_s: float | None = None
    shares: Annotated[tuple[float, ...], Most(MAX_SHARES)] = ()


@dataclass(frozen=True)
class Shutdown:
    """Stop the service: running requests finish within `deadline_s`, then are cancelled."""

    ref: int
    deadline_s: float = 10.0


@dataclass(frozen=True)
class Welcome:
    ref: int
    version: str
    pid: int
    model: str


@dataclass(frozen=True)
class Accepted:
    """`request` names the request from now on; `ahead` requests are answered before it."""

    ref: int
    request: bytes
    ahead: int


@dataclass(frozen=True)
class Progress:
    """How far a request is before its first token: `done` of `total` (requests queued, or prompt tokens)."""

    request: bytes
    phase: Literal["queued", "prefill", "recovering"]
    done: int
    total: int


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities of one token under the law it was drawn from: the token's own, and the best alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Tokens:
    """`ids` are tokens number `seq`, `seq + 1`, … of the answer; `text` is what became certain with them."""

    request: bytes
    seq: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Finished:
    request: bytes
    reason: Reason
    usage: Usage
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """`request` is set when an accepted request failed, `ref` when a message was refused. `kind` is stable:

    "bad_request" the user's mistake; "too_long", "unsupported" likewise, more precise; "busy" the queue is full;
    "environment" disk, memory or a child process; "gone" no such request; "shutdown" the service is stopping;
    "internal" a bug of ours; "protocol" the bytes were not a message.
    """

    kind: Literal[
        "bad_request",
        "too_long",
        "unsupported",
        "busy",
        "environment",
        "gone",
        "shutdown",
        "internal",
        "protocol",
    ]
    text: str
    ref: int | None = None
    request: bytes | None = None


@dataclass(frozen=True)
class Done:
    ref: int
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Alive:
    """Sent to every live client at least each half second, so that a gone one is noticed."""


FromClient = Hello | Submit | Attach | Cancel | Status | Resize | Pin | Calibrate | Shutdown
ToClient = Welcome | Accepted | Progress | Tokens | Finished | Failed | Done | Alive

from_client: Codec[FromClient] = Codec(Hello, Submit, Attach, Cancel, Status, Resize, Pin, Calibrate, Shutdown)
to_client: Codec[ToClient] = Codec(Welcome, Accepted, Progress, Tokens, Finished, Failed, Done, Alive)
