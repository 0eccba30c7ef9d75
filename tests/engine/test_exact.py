"""Streamed equals resident, bit for bit: every family, packed or not, every size of pool."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtp_daemon.engine.stream import StreamSettings
from support.checkpoints import make_checkpoint
from support.families import FAMILIES
from support.reference import reference_logits, streamed_logits

CHUNKS = ([5, 9, 200, 17, 3, 44, 301, 8, 90, 511, 6, 77], [12], [400], [7], [7, 8, 9], [1])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_d1_logits_equal_plain_mlx_lm(family: str, share: float, tmp_path: Path, serve: Callable[..., Any]) -> None:
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    served = serve(path, share, settings=StreamSettings(verify_slots=share == 0.25))
    for want, got in zip(reference_logits(path, CHUNKS), streamed_logits(served, CHUNKS), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not served.loader.errors
