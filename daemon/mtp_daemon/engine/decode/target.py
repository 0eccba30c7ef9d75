"""What a request is decoded with: the model in pieces, its stream of experts, and its head if it has one."""

from dataclasses import dataclass

from mtp_daemon.engine.mtp.head import MtpHead
from mtp_daemon.engine.mtp.hidden import Hidden
from mtp_daemon.engine.stream import Stream
from mtp_daemon.engine.trunk import Trunk


@dataclass(frozen=True, eq=False)
class Target:
    """`head` None: plain decoding, and `head_why` says why in one line. `hidden`: which rows feed the head."""

    trunk: Trunk
    stream: Stream
    head: MtpHead | None = None
    head_why: str = ""
    hidden: Hidden = "post_norm"
