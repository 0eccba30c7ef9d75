"""The pool as MLX arrays: no copy, other processes' writes are seen, and memory is given back safely."""

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.pool_view import PoolView, cpu, metal
from mtp_protocol.geometry import Bank, BankLayout, Geometry, Layer, Plane, PoolLayout, Quantisation
from support.pool_shapes import layout_for, new_region

PLANES = (
    Plane("gate.weight", "uint32", "uint32", (64, 8)),
    Plane("gate.scales", "float32", "float32", (64, 1)),
    Plane("up.weight", "bfloat16", "bfloat16", (32, 24)),
    Plane("down.bias", "float16", "float16", (5,)),
    Plane("down.global_scale", "float32", "float32", ()),
)


def geometry(planes: tuple[Plane, ...] = PLANES, experts: int = 16) -> Geometry:
    plain = Quantisation()
    bank = Bank(0, planes, plain, plain, plain, (0,))
    return Geometry("f", "test", True, 1, (bank,), (Layer(0, 0, experts, 2),))


@pytest.fixture
def region() -> Iterator[int]:
    fd = new_region(layout_for(geometry()))
    yield fd
    os.close(fd)


def test_rows_written_by_another_process_are_seen(region: int) -> None:
    """A view that copied once would show zeros for ever."""
    layout = layout_for(geometry())
    view = PoolView(region, geometry(), layout)
    plane = view.banks[0]["up.weight"]
    assert plane.dtype == mx.bfloat16 and plane.shape == (16, 32, 24)
    assert float(plane.astype(mx.float32).sum()) == 0.0
    row = (np.arange(32 * 24, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    where = layout.banks[0].plane_offsets[2] + 3 * len(row)
    code = f"import os; os.pwrite({region}, bytes.fromhex('{row.hex()}'), {where})"
    subprocess.run([sys.executable, "-c", code], pass_fds=[region], check=True, timeout=30)
    got = plane[3].astype(mx.float32)
    want = mx.array(np.frombuffer(row, np.uint16)).view(mx.bfloat16).reshape(32, 24).astype(mx.float32)
    assert mx.array_equal(got, want)
    assert float(plane[2].astype(mx.float32).sum()) == 0.0
    view.close()


def test_every_plane_lies_where_the_layout_says(region: int) -> None:
    """Offsets mixed up between planes, or a lead-in forgotten, would shift rows."""
    layout = layout_for(geometry())
    for i, offset in enumerate(layout.banks[0].plane_offsets):
        os.pwrite(region, bytes([i + 1]) * (16 * PLANES[i].row_bytes), offset)
    view = PoolView(region, geometry(), layout)
    for i, plane in enumerate(PLANES):
        raw = view.banks[0][plane.name].reshape(-1).view(mx.uint8)
        assert raw.size == 16 * plane.row_bytes
        assert mx.all(raw == i + 1), plane.name
    view.close()


def test_planes_need_not_start_on_a_page(region: int) -> None:
    """Each mapping begins on a page; a plane that does not is sliced out of it."""
    data = os.urandom(4096)
    os.pwrite(region, data, 5000)
    array, restore = cpu.adopt(region, 5000, 4096)
    assert np.array(array).tobytes() == data
    restore()


def test_after_close_the_heap_never_writes_into_the_pool() -> None:
    """MLX's buffer goes back to malloc; if it still aliased the pool, whoever gets it next would overwrite experts."""
    planes = tuple(Plane(f"{p}.weight", "uint8", "uint8", (n,)) for p, n in (("gate", 4096), ("up", 700), ("down", 9)))
    shape = geometry(planes)
    layout = layout_for(shape)
    fd = new_region(layout)
    pattern = os.urandom(layout.nbytes)
    os.pwrite(fd, pattern, 0)
    for _ in range(20):
        view = PoolView(fd, shape, layout)
        arrays = list(view.banks[0].values())
        mx.eval([a + 1 for a in arrays])
        view.close()
        del view, arrays
        gc.collect()
        mx.clear_cache()
        storm = [bytearray(b"\xee" * n) for n in (700, 4096, 9 * 16, 65536, 70000, 80000) for _ in range(40)]
        more = [mx.full((n,), 7, mx.uint8) for n in (9 * 16 + 8192, 65536 + 8192, 11200 + 8192) for _ in range(20)]
        mx.eval(more)
        assert os.pread(fd, layout.nbytes, 0) == pattern
        del storm, more
    os.close(fd)


def test_adoption_takes_one_plane_of_memory_at_a_time() -> None:
    """A 377 MB pool that peaks at 1226 MB is a fault seen in the field: planes must not be touched all at once."""
    code = """
        import os, resource, sys
        from mtp_daemon.engine.pool_view import PoolView
        from support.pool_shapes import layout_for, new_region
        from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation
        planes = tuple(Plane(f"{p}.{c}", "uint8", "uint8", (1 << 20,)) for p in ("gate", "up", "down")
                       for c in ("weight", "scales", "biases"))
        q = Quantisation()
        shape = Geometry("f", "t", True, 1, (Bank(0, planes, q, q, q, (0,)),), (Layer(0, 0, 24, 2),))
        layout = layout_for(shape)
        fd = new_region(layout)
        import mlx.core as mx
        mx.eval(mx.zeros((1000,)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        view = PoolView(fd, shape, layout)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        view.close()
    """
    tests = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 2 * (24 << 20), "nine planes of 24 MB: the peak is about one of them"


def test_an_mlx_that_would_copy_is_refused(region: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU backend cannot adopt memory the way Metal does: that must be an error with a reason, not a copy."""
    if mx.metal.is_available():
        pytest.skip("Metal adopts it")
    with pytest.raises(ValueError):
        metal.adopt(region, 0, 4096)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    with pytest.raises(RequestRefused, match=r"gate\.weight without copying"):
        PoolView(region, geometry(), layout_for(geometry()))


def test_a_region_that_is_too_small_is_an_error(region: int) -> None:
    """A mapping past the end of the region would kill the process with SIGBUS at the first look."""
    layout = PoolLayout(1, 1 << 30, (BankLayout(0, 16, tuple((1 << 30) + i * 65536 for i in range(len(PLANES)))),))
    with pytest.raises(OSError, match="region has"):
        PoolView(region, geometry(), layout)
