"""Builds of full TensorRT that take hours, with a stand-in for the library whose clock is not real:
the first engine stays, a kill loses little, and the next build goes on where the last one ended."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import parser

from optkit.craft.backends import engine_search, kept, tensorrt
from optkit.craft.backends.tensorrt import TensorRT
from optkit.facts.engines import BuildSpec, Engine
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target
from optkit.ground.execute.step import Foreign
from optkit.ground.execute.task import TaskLimits
from optkit.road.steps.compile import Compile
from tests.backends.standins import Driver

KERNELS = {3: 10, 5: 1000}  # by level: those that are timed
SECONDS = 10.8  # of timing one: level 5 takes 3 hours
NAME = "timed_trt"


class Clock:
    """`pause`: what passes of real time with each kernel."""

    def __init__(self) -> None:
        self.now, self.pause = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(self.pause)


class Options:
    """A builder configuration, which takes any option."""

    def __init__(self) -> None:
        self.flags: set[Any] = set()
        self.known: set[int] = set()
        self.pools: dict[Any, int] = {}
        self.builder_optimization_level = 3
        self.progress_monitor: Any = None

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self.flags

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self.pools[pool] = size

    def get_memory_pool_limit(self, pool: Any) -> int:
        return self.pools[pool]

    def create_timing_cache(self, content: bytes) -> Any:
        self.known = set(json.loads(content or b"[]"))
        return SimpleNamespace(serialize=lambda: json.dumps(sorted(self.known)).encode())

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        return True


class Anything:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


def library(clock: Clock) -> Any:
    class Builder:
        def __init__(self, log: Any) -> None: ...

        def create_network(self, flags: int) -> Any:
            return SimpleNamespace(
                num_inputs=0, num_outputs=1, add_input=lambda *_: None,
                add_identity=lambda _: SimpleNamespace(get_output=lambda _: None),
                mark_output=lambda _: None,
            )  # fmt: skip

        def create_builder_config(self) -> Options:
            return Options()

        def create_optimization_profile(self) -> Any:
            return SimpleNamespace()

        def build_serialized_network(self, network: Any, config: Options) -> bytes | None:
            if config.progress_monitor is None:  # the network that is not used
                return b""
            level = config.builder_optimization_level
            config.progress_monitor.phase_start("timing", None, KERNELS[level])
            for kernel in range(KERNELS[level]):
                if kernel not in config.known:
                    clock.pass_(SECONDS)
                    config.known.add(kernel)
                if not config.progress_monitor.step_complete("timing", kernel):
                    return None
            return f"engine of level {level}".encode()

    return SimpleNamespace(
        __name__=NAME, __version__="11.4", float32="float32", Builder=Builder,
        ILogger=type("L", (), {}), IProgressMonitor=type("M", (), {}), BuilderFlag=Anything(),
        MemoryPoolType=Anything(),
        ProfilingVerbosity=Anything(), TilingOptimizationLevel=Anything(),
        HardwareCompatibilityLevel=Anything(),
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
        OnnxParser=lambda network, log: SimpleNamespace(parse_from_file=lambda _: True),
    )  # fmt: skip


class Timed(TensorRT):
    module = NAME

    def _library(self) -> Any:
        return sys.modules[NAME]


@pytest.fixture
def clock(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setitem(sys.modules, NAME, library(clock))
    monkeypatch.setattr(engine_search, "time", clock)
    monkeypatch.setattr(kept, "time", clock)
    tensorrt.logger.cache_clear()
    return clock


Build = Callable[[float], Engine]


@pytest.fixture
def build(clock: Clock, tmp_path: Path) -> Build:
    """Compiles with so many minutes for the search."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Abs (x) }'
    )
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")

    def compiled(minutes: float) -> Engine:
        plan = specification(minutes)
        return Timed().compile(
            tmp_path / "model.onnx", plan, {}, tmp_path, lambda *_: None, tmp_path / "devices"
        )

    return compiled


def specification(minutes: float) -> BuildSpec:
    plan = TensorRT().spec((), target("l4"), PRECISIONS["fp16"], {})
    return plan.asking({"search_minutes": minutes})


def timed(folder: Path) -> list[int]:
    [file] = folder.glob("devices/*.timings")
    return list(json.loads(file.read_bytes()))


def test_without_minutes_the_default_level_is_built(
    build: Build, clock: Clock, tmp_path: Path
) -> None:
    assert "search" not in str(build(0).note)
    assert (tmp_path / "tensorrt.engine").read_bytes() == b"engine of level 3"
    assert clock.now == pytest.approx(KERNELS[3] * SECONDS)


def test_a_search_that_does_not_end_leaves_the_first_engine_and_goes_on_next_time(
    build: Build, clock: Clock, tmp_path: Path
) -> None:
    note = build(60).note
    assert note is not None and "level 5 did not end within 60 minutes" in note
    assert "the engine is of level 3" in note
    assert (tmp_path / "tensorrt.engine").read_bytes() == b"engine of level 3"
    assert clock.now == pytest.approx(KERNELS[3] * SECONDS + 3600, abs=2 * SECONDS)
    for _ in range(2):
        note = build(60).note
    assert note is not None and note.startswith("built at level 5")
    assert (tmp_path / "tensorrt.engine").read_bytes() == b"engine of level 5"
    assert clock.now == pytest.approx(3 * 3600, abs=KERNELS[3] * SECONDS)


def test_a_kill_loses_less_than_a_minute_of_timings(
    build: Build, clock: Clock, tmp_path: Path
) -> None:
    clock.pause = 0.002

    def built() -> None:
        gc.disable()  # a child has sessions of other tests, and not their threads
        build(600)

    child = multiprocessing.get_context("fork").Process(target=built)
    child.start()
    ends = time.monotonic() + 60
    while time.monotonic() < ends and not [*tmp_path.glob("devices/*.timings")]:
        time.sleep(0.01)
    time.sleep(0.3)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    left = len(timed(tmp_path))
    assert left >= KERNELS[3]
    clock.pause = 0.0
    assert str(build(600).note).startswith("built at level 5")
    assert clock.now == pytest.approx((KERNELS[5] - left) * SECONDS, abs=1e-6)


def test_timings_are_written_each_half_a_minute(
    build: Build, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    passed = clock.pass_

    def looked(seconds: float) -> None:
        passed(seconds)
        if clock.now > 60:
            done = round(clock.now / SECONDS)
            lost.append(done - len(timed(tmp_path)))

    monkeypatch.setattr(clock, "pass_", looked)
    build(600)
    assert max(lost) * SECONDS < 60


def test_a_compiler_that_times_kernels_has_a_limit_of_its_own(tmp_path: Path) -> None:
    def step(plan: BuildSpec) -> Compile:
        return Compile(
            graph=Foreign(tmp_path), backend="tensorrt", spec=plan, planned={}, versions={},
            host=None,
        )  # fmt: skip

    usual = TaskLimits(1 << 30)
    assert usual.of(step(specification(60)).limit_seconds).seconds == 13 * 3600
    assert TaskLimits(1 << 30, 5.0, chosen=True).of(13 * 3600).seconds == 5.0
    without = BuildSpec("tensorrt-rtx", "l4", "8.9", "fp16", {}, None)
    assert usual.of(step(without).limit_seconds) == usual
