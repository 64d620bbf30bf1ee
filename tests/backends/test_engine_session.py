"""Sessions of engines, with stand-ins for the driver and the library, whose memory is checked.

experiments/gpu/check.py tests a real GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.craft.backends.build_log import BuildMessages
from optkit.craft.backends.kept import KernelFile
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused, ToolchainMissing, UsageError, WorkerFailed
from optkit.facts.measurement import Latency
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.devices import Gpu, target
from optkit.ground.execute.step import Foreign
from optkit.ground.runtimes import PhasedSession, Recurrent, SessionOptions
from optkit.road.steps import perform
from optkit.road.steps.bodies import bench, sessions
from optkit.road.steps.sessions import DeviceSession, Engines
from tests.backends.standins import Driver, rows


def test_an_engine_runs_and_frees_what_it_took(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        assert session.inputs[0] == TensorInfo("x", "float32", ("x.0", 2))
        for x, state in ((rows(1, 2), rows()), (rows(3), rows(1, 2, 3)), (rows(1, 2), rows())):
            found = session.run({"x": x, "state": state})
            np.testing.assert_array_equal(found["grown"], np.concatenate([state, x]))
            np.testing.assert_array_equal(found["total"], found["grown"].sum(0))
    assert driver.blocks == {}
    session.close()


def test_launches_are_recorded_once_per_shapes(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened(cuda_graph=True) as session:
        for run in range(4):
            found = session.run({"x": rows(run, 1), "state": rows(5)})
            np.testing.assert_array_equal(found["grown"], rows(5, run, 1))
        assert (driver.launches, len(driver.graphs)) == (3, 1)
        session.run({"x": rows(1, 2, 3), "state": rows(5)})  # another size: nothing is replayed
        assert driver.launches == 3
        np.testing.assert_array_equal(
            session.run({"x": rows(7, 8), "state": rows(5)})["grown"], rows(5, 7, 8)
        )
    assert driver.graphs == {} and driver.blocks == {}


def test_phases_of_a_run_are_told_apart(
    opened: Callable[..., Recurrent], driver: Driver, tmp_path: Path
) -> None:
    feed = {"x": rows(1, 2), "state": rows(5)}
    for recorded in (False, True):
        with opened(cuda_graph=recorded) as session:
            assert isinstance(session, PhasedSession)
            for _ in range(3):
                found = session.phases(feed)
            assert (found.upload_ms, found.compute_ms, found.download_ms) == (2.0, 8.0, 0.5)
            assert found.enqueue_ms > 0
            assert driver.launches == 2 * recorded
            np.testing.assert_array_equal(session.run(feed)["grown"], rows(5, 1, 2))
        assert driver.events == {} and driver.blocks == {}


def test_threads_run_one_after_the_other_until_it_is_closed(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    def work(value: int) -> bool:
        found = session.run({"x": rows(value, 1), "state": rows(5)})
        return np.array_equal(found["grown"], rows(5, value, 1))

    with opened() as session, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
        loop = session.loop({"grown": "state"}, {"state": rows()})
    for run in (lambda: work(1), lambda: loop.run({"x": rows(1)})):
        with pytest.raises(UsageError, match="the session is closed"):
            run()
    assert driver.blocks == {}


def test_a_loop_keeps_what_it_carries_on_the_device(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        loop = session.loop({"grown": "state"}, {"state": rows()})
        sums = [loop.run({"x": rows(value)})["total"][0] for value in (1, 2, 3, 4, 5, 6, 7)]
        assert sums == [1, 3, 6, 10, 15, 21, 28]
        with pytest.raises(InputRefused, match=r"\(7, 2\) is outside \(0, 2\) to \(6, 2\)"):
            loop.run({"x": rows(8)})


def test_a_loop_goes_on_from_the_rows_to_which_it_is_cut(
    opened: Callable[..., Recurrent], driver: Driver
) -> None:
    with opened() as session:
        loop = session.loop({"grown": "state"}, {"state": rows()})
        loop.run({"x": rows(1, 2, 4)})
        loop.cut(2, axis=0)
        assert loop.run({"x": rows(8)})["total"][0] == 1 + 2 + 8
        loop.cut(0, axis=0)
        assert loop.run({"x": rows(16)})["total"][0] == 16
    assert driver.blocks == {}


def test_what_a_loop_starts_with_and_does_not_carry_stays(opened: Callable[..., Recurrent]) -> None:
    with opened() as session:
        loop = session.loop({"grown": "state"}, {"state": rows(), "x": rows(5)})
        assert [loop.run({})["total"][0] for _ in range(3)] == [5, 10, 15]
        with pytest.raises(InputRefused, match="no such input"):
            loop.run({"x": rows(8)})


def test_what_does_not_fit_is_refused(opened: Callable[..., Recurrent], driver: Driver) -> None:
    with opened() as session:
        with pytest.raises(InputRefused, match="outside") as caught:
            session.run({"x": rows(*range(5)), "state": rows()})
        assert caught.value.where == "input 'x'"
        with pytest.raises(InputRefused, match="float64"):
            session.run({"x": rows(1).astype(float), "state": rows()})
        driver.limit = 16
        with pytest.raises(WorkerFailed, match="out of memory") as full:
            session.run({"x": rows(1, 2, 3), "state": rows()})
        assert full.value.verdict == "oom"


def test_another_device_is_refused(opened: Callable[..., Recurrent], driver: Driver) -> None:
    with pytest.raises(ToolchainMissing, match=r"built for rtx4090, .* NVIDIA L4 \(l4\)") as caught:
        opened(target="rtx4090")
    assert "optkit build --target l4" in (caught.value.hint or "")


def test_a_step_opens_an_engine_for_its_target(
    backend: TensorRT, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "backend", lambda name: backend)
    running = Engines("tensorrt", {"engine": "m.engine"}, DeviceSession("l4", True))
    with sessions.engine(running, "engine", Foreign(tmp_path), tmp_path) as session:
        for _ in range(3):
            session.run({"x": rows(1), "state": rows()})
    assert driver.launches == 2
    other = replace(running, session=DeviceSession("t4"))
    with pytest.raises(ToolchainMissing, match="built for t4"):
        sessions.engine(other, "engine", Foreign(tmp_path), None)


@pytest.mark.slow
def test_the_bench_step_tells_phases_with_launches_one_by_one_and_recorded(
    backend: TensorRT, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spool:
        def __init__(self, path: Path) -> None: ...

        def feed(self, batch: int) -> Feed:
            return {"x": rows(*range(batch)), "state": rows(1)}

    monkeypatch.setattr(bench, "backend", lambda name: backend)
    monkeypatch.setattr(bench, "Spool", Spool)
    side = {"file": "m.engine", "backend": "tensorrt", "session": {"target": "l4"}}
    sides = {name: {"input": name, **side} for name in ("engine", "baseline")}
    params = {"batches": [1, 2], "seconds": 0.01, "warmup_seconds": 0.01, "gpu": True,
              "sides": sides, "host": {"gpus": [{"name": "NVIDIA L4"}]}}  # fmt: skip
    inputs = dict.fromkeys(("engine", "baseline", "samples"), tmp_path)
    found = perform("bench", inputs, params, tmp_path, lambda what, done: None)
    assert [row["engine"]["batch"] for row in found["rows"]] == [1, 2]
    for name in sides:
        phases = from_json(Latency, found["rows"][1][name]).phases
        assert phases is not None
        assert phases.launched.compute_ms == phases.recorded.compute_ms == 8.0
        assert phases.recorded.enqueue_ms > 0
    assert driver.launches > 200
    assert "gpu" in found["conditions"]


@pytest.mark.parametrize("real", [TensorRT(), TensorRTRTX()])
def test_without_a_driver_it_says_so(real: TensorRT, tmp_path: Path) -> None:
    with pytest.raises(ToolchainMissing, match=r"no NVIDIA driver: libcuda\.so\.1"):
        real.session(tmp_path / "m.engine", SessionOptions(target="l4"))


def test_the_real_library_tells_why_it_does_not_load(driver: Driver, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    (tmp_path / "m.engine").write_bytes(b"no engine")
    with pytest.raises(ToolchainMissing, match=r"TensorRT-RTX does not load this engine: \w+"):
        TensorRTRTX().session(tmp_path / "m.engine", SessionOptions(target="l4"))
    assert driver.blocks == {}


def test_what_a_library_learned_is_kept_per_device_and_version(tmp_path: Path) -> None:
    gpu = Gpu(0, "NVIDIA L4", None, "8.9", "13000")
    kept = KernelFile.of(tmp_path, "timings", gpu, {"tensorrt": "11.4.0"})
    with kept.alone():
        kept.write(b"one")
    assert KernelFile.of(tmp_path, "timings", gpu, {"tensorrt": "11.4.0"}).read() == b"one"
    for what, device, version in (
        ("kernels", gpu, "11.4.0"),
        ("timings", gpu, "11.5.0"),
        ("timings", replace(gpu, driver="13010"), "11.4.0"),
        ("timings", replace(gpu, name="NVIDIA L40S"), "11.4.0"),
    ):
        assert KernelFile.of(tmp_path, what, device, {"tensorrt": version}).read() == b""


def test_timings_are_read_before_a_build_and_written_after(driver: Driver, tmp_path: Path) -> None:
    given: list[bytes] = []

    class Config:
        def create_timing_cache(self, known: bytes) -> Any:
            given.append(known)
            return SimpleNamespace(serialize=lambda: known + b"learned ")

        def set_timing_cache(self, timings: Any, ignore_mismatch: bool) -> bool:
            return not ignore_mismatch

    plan = TensorRT().spec((), target("l4"), PRECISIONS["fp16"], {})
    for _ in range(2):
        with TensorRT()._timings(Config(), plan, tmp_path / "devices", BuildMessages()):
            pass
    assert given == [b"", b"learned "]
    assert [file.read_bytes() for file in tmp_path.glob("devices/NVIDIA-L4*.timings")] == [
        b"learned learned "
    ]
    rtx = TensorRTRTX().spec((), target("l4"), PRECISIONS["fp16"], {})
    with TensorRTRTX()._timings(Config(), rtx, tmp_path / "none", BuildMessages()):
        pass
    assert not (tmp_path / "none").exists()
