"""Reading the tokens of a forward that has ended, while the next one runs."""

import time

import mlx.core as mx

from mtp_daemon.engine.decode.host import FedTokens


def test_known_tokens_are_read_while_the_device_is_busy() -> None:
    """A graph made for the read would wait its turn behind what was launched meanwhile, and the device would wait for
    the host afterwards: 5 ms of each token where everything is resident.
    """
    assert any(_read_before_half_of_it() for _ in range(5)), "five times: somebody else may have the cores"


def _read_before_half_of_it() -> bool:
    ids = mx.array([[3, 1], [4, 1]], dtype=mx.int32)
    factor = mx.ones((512, 512)) / 512
    mx.eval(ids, factor)
    busy = factor
    for _ in range(20):
        busy = busy @ factor
    began = time.monotonic()
    mx.async_eval(busy)  # type: ignore[no-untyped-call]
    assert list(FedTokens(ids)) == [3, 1, 4, 1]
    read = time.monotonic()
    mx.eval(busy)
    return read - began < (time.monotonic() - began) / 2
