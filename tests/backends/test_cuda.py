"""The calls of the driver: their types, the first error, and what remains when one of them fails.

They run with a stand-in for the driver, which is called like a C library with the declared types.
"""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.craft.backends import cuda
from optkit.craft.backends.cuda import PROTOTYPES, Cuda
from optkit.craft.benchmarking import latency
from optkit.facts.errors import ToolchainMissing, WorkerFailed
from optkit.facts.tensors import TensorInfo, narrowed
from optkit.ground.runtimes import NotedSession, Recurrent
from tests.backends.standins import Driver, FakeContext, FakeEngine, rows


def test_every_call_has_its_types_and_every_type_its_call() -> None:
    source = ast.parse(Path(cuda.__file__).read_text())
    named = {
        node.value
        for function in ast.walk(source)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and str(node.value).startswith("cu")
    }
    assert named | {"cuGetErrorString"} == PROTOTYPES.keys()


def test_a_library_gets_the_types_and_an_old_one_is_refused() -> None:
    library = SimpleNamespace(**{name: SimpleNamespace() for name in PROTOTYPES})
    cuda.typed(library)
    assert library.cuMemFree_v2.argtypes == [ctypes.c_uint64]  # an int would cut an address
    assert library.cuMemFree_v2.restype is ctypes.c_int
    del library.cuGraphInstantiateWithFlags
    with pytest.raises(ToolchainMissing, match="too old: it has no cuGraphInstantiateWithFlags"):
        cuda.typed(library)


def test_inside_wsl_the_driver_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def loaded(path: str) -> Any:
        asked.append(path)
        if "/" not in path:
            raise OSError("not found")
        return SimpleNamespace(**{name: SimpleNamespace() for name in PROTOTYPES})

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    cuda.load()
    assert asked == ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"]


def test_the_driver_tells_its_own_version(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for told, expected in (("580.95.05", "580.95.05"), (None, "of CUDA 13000")):
        monkeypatch.setattr(cuda, "driver_version", lambda told=told: told)
        with Cuda() as device:
            assert device.gpu.driver == expected


def test_what_failed_first_is_reported(driver: Driver) -> None:
    with pytest.raises(WorkerFailed, match="the first"), Cuda() as device:
        device.allocate(8)
        driver.failing |= {"cuMemFree_v2", "cuStreamDestroy_v2"}
        raise WorkerFailed("the first", verdict="crashed")


def test_closing_frees_all_it_can_and_tells_the_first_error(driver: Driver) -> None:
    device = Cuda()
    device.allocate(8)
    device.events(3)
    driver.failing |= {"cuMemFree_v2", "cuStreamDestroy_v2"}
    with pytest.raises(WorkerFailed, match="cuMemFree_v2"):
        device.close()
    assert driver.events == {}
    device.close()  # nothing is freed twice


def test_a_device_without_a_stream_is_let_go(driver: Driver) -> None:
    driver.failing.add("cuStreamCreate")
    with pytest.raises(WorkerFailed, match="cuStreamCreate"):
        Cuda()


def test_after_an_out_of_memory_no_freed_address_is_used(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        session.run({"x": rows(1, 2), "state": rows(5)})
        driver.limit = 16
        with pytest.raises(WorkerFailed, match="out of memory"):
            session.run({"x": rows(1, 2, 3), "state": rows(5)})
        driver.limit = 1 << 20
        for x in (rows(1), rows(1, 2)):  # as small as before: it had room
            found = session.run({"x": x, "state": rows(5)})
            np.testing.assert_array_equal(found["total"], x.sum(0) + rows(5)[0])
    assert driver.blocks == {}


@pytest.mark.parametrize("failing", ["capture", "launch", "cuGraphInstantiateWithFlags"])
def test_where_launches_cannot_be_recorded_they_are_not_and_a_note_says_why(
    opened: Callable[..., Recurrent], driver: Driver, failing: str
) -> None:
    driver.failing.add(failing)
    with opened(cuda_graph=True) as session:
        for run in range(4):
            found = session.run({"x": rows(run, 1), "state": rows(5)})
            np.testing.assert_array_equal(found["grown"], rows(5, run, 1))
        assert isinstance(session, NotedSession)
        assert (session.note or "").startswith("launches are not recorded: ")
    assert (driver.launches, driver.blocks) == (0, {})


def test_a_latency_says_that_launches_were_not_recorded(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    driver.failing.add("launch")
    found = latency.measure(
        {"engine": lambda: opened(cuda_graph=True), "baseline": opened},
        lambda batch: {"x": rows(*range(batch)), "state": rows(1)},
        [2],
        seconds=0.01,
        warmup_seconds=0.01,
        progress=lambda what, done: None,
    )
    assert "launches are not recorded" in (found["engine", 2].note or "")
    assert "launches" not in (found["baseline", 2].note or "")


@pytest.mark.parametrize("takes", [True, False])
def test_a_library_that_can_be_asked_is_asked_first(
    opened: Callable[..., Recurrent], driver: Driver, monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    asked: list[int] = []

    def capturable(self: FakeContext, stream: int) -> bool:
        asked.append(stream)
        return takes

    monkeypatch.setattr(FakeContext, "is_stream_capturable", capturable, raising=False)
    with opened(cuda_graph=True) as session:
        for _ in range(5):
            session.run({"x": rows(1), "state": rows(5)})
        assert asked == [77]
        assert driver.launches == (4 if takes else 0)
        assert (session.note is None) == takes
    with opened() as session:
        for _ in range(3):
            session.run({"x": rows(1), "state": rows(5)})
    assert asked == [77]  # nobody wants it recorded


def test_caches_in_bfloat16(
    opened: Callable[..., Recurrent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "kind", "BF16")
    monkeypatch.setattr(FakeEngine, "dtype", "bfloat16")
    with opened() as session:
        assert session.inputs[1] == TensorInfo("state", "bfloat16", ("state.0", 2))
        start = narrowed({"state": rows(1)}, session.inputs)
        loop = session.loop({"grown": "state"}, start)
        sums = [loop.run(narrowed({"x": rows(v)}, session.inputs))["total"][0] for v in (1, 2, 3)]
        assert [float(one) for one in sums] == [2, 4, 7]
