"""Which of the target's hidden rows feed the head."""

from typing import Literal

import mlx.core as mx

from mtp_daemon.engine.trunk import HiddenRows

Hidden = Literal["post_norm", "pre_norm"]


def chosen_rows(rows: HiddenRows, hidden: Hidden) -> mx.array:
    """[B, S, H]: the rows after the final norm, or before it. Raises RequestRefused where the latter cannot be seen."""
    return rows.post if hidden == "post_norm" else rows.pre
