"""The contract of a backend: it compiles (Backend) and runs (Session).

This module has only protocols: importing it loads no native library. A backend is one module and
one line in BACKENDS. Code that depends on the kind of a backend reads its `Traits`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from types import MappingProxyType
from typing import Literal, Protocol, Self, runtime_checkable

from optkit.facts.engines import BuildSpec, Engine, FusedLayer
from optkit.facts.errors import unknown_name
from optkit.facts.measurement import Phases
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange, Feed, TensorInfo
from optkit.ground.devices import Target
from optkit.ground.operator_library import OperatorLibrary

Progress = Callable[[str, float], None]
"""`progress(what, fraction)` with fraction in [0, 1]."""


class Loop(Protocol):
    """A session that runs repeatedly on its own outputs. `run` takes and returns only the inputs
    and outputs that do not stay in the runtime."""

    def run(self, feed: Feed) -> Feed: ...

    def cut(self, rows: int, axis: int) -> None:
        """Keep only the first rows, along this axis, of the values that stay in the runtime and
        grow. A buffer of full length stays as it is: the feed of the next run says how much of it
        is filled."""

    @property
    def sliding(self) -> Sliding | None:
        """None: the next run may read every row of the values that grow."""


class Sliding(Protocol):
    """The part of a loop that forgets rows which no later run reads. `window`: a new row reads
    itself and the `window` - 1 rows before it."""

    @property
    def window(self) -> int: ...

    def slide(self, filled: int, kept: int, room: int) -> None:
        """Of the `filled` rows, keep only the last `kept` ones, at the start of a buffer of `room`
        rows."""


class Session(Protocol):
    """A loaded model that runs. Context manager; `run` takes and returns arrays by name."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...

    def run(self, feed: Feed) -> Feed: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class PhasedSession(Session, Protocol):
    """A session on a device that times each phase of a run."""

    def phases(self, feed: Feed) -> Phases: ...


@runtime_checkable
class NotedSession(Session, Protocol):
    """A session that may be unable to do everything that its options ask for."""

    note: str | None  # what it cannot do, and why


@runtime_checkable
class ProfiledSession(Session, Protocol):
    """A session on a device that times each of its layers."""

    def layer_times(
        self, feed: Feed, products: Collection[str], seconds: float
    ) -> list[tuple[FusedLayer, float]]:
        """The engine's layers and the median milliseconds of each, over runs for about `seconds`.
        `products`: names of the ONNX nodes that multiply (Conv, MatMul, Gemm).

        Closes the session, because a profiled session runs differently afterwards."""


class Recurrent(Session, Protocol):
    """A session that can also be run on its own outputs."""

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> Loop:
        """Runs whose outputs become inputs of the next run; `carried` maps output → input. These
        values never leave the runtime. `start`: these inputs for the first run, and other inputs
        that stay the same in all runs.

        `room`: the largest number of rows of the values that grow. A graph that supports it
        (`decoder.IN_PLACE`) writes into one buffer of this size; others return a longer tensor in
        each run."""


Level = Literal["all", "extended", "basic", "none"]
"""How far ONNX Runtime optimizes a graph before it runs it."""


@dataclass(frozen=True)
class SessionOptions:
    """How a model is loaded and run. A backend ignores options that it does not have.

    threads      of ONNX Runtime on the CPU; None: all physical cores that this process may use
    spinning     False: idle threads sleep, so that other work gets the cores
    level        "basic" keeps the Q/DQ pairs and the float weights of a simulation as they are
    pooled       False: memory goes back to the system as soon as it is free
    target       the device of the engine; None: that of this machine. An engine that is bound to a
                 device raises ToolchainMissing on another one
    cuda_graph   kernel launches are recorded and replayed, for inputs of fixed sizes
    kept         folder for what a library stores about this device (timings, compiled kernels)
    adapter      an adapter file, whose matrices replace those of the graph; ONNX Runtime on the CPU
                 reads it
    plugins      the library of plugins that an engine of TensorRT needs
    """

    threads: int | None = None
    spinning: bool = True
    level: Level = "all"
    pooled: bool = True
    target: str | None = None
    cuda_graph: bool = False
    kept: Path | None = None
    adapter: Path | None = None
    plugins: OperatorLibrary | None = None


DEFAULT_OPTIONS = SessionOptions()


@dataclass(frozen=True)
class Traits:
    """The facts about a backend that a build needs, so that no code compares the name of a backend.

    engine         "graph": the engine is the ONNX file itself; "plan": machine code, which may be
                   opened only if its author is trusted
    on_cpu         it runs on this machine's CPU in this process, with threads; otherwise on a
                   device, in a session for this target
    operators      the form of the graph that it needs: plain ONNX, or with com.microsoft operators
    memory         where the peak memory of a run is read: this process or the device; None: nowhere
    any_machine    it compiles for devices that are not here, so its engines may never have run
    distribution   for a backend with any_machine: the Python distribution that compiling needs
    caches         the formats of codes in which it may store the key-value cache of a decoder
    moves_data     matches the name of a layer that names no ONNX node and only moves or converts
                   values; None: there are no such layers
    """

    engine: Literal["graph", "plan"]
    on_cpu: bool = False
    operators: Literal["standard", "ort"] = "standard"
    memory: Literal["process", "device"] | None = "device"
    any_machine: bool = False
    distribution: str | None = None
    caches: frozenset[str] = frozenset()
    moves_data: Pattern[str] | None = None


class Backend(Protocol):
    """One compiler and runtime. Its constructor loads no native library; `check` loads it and may
    raise."""

    name: str
    traits: Traits

    def check(self) -> None:
        """Raise ToolchainMissing (with the name of the extra) if the library is missing or unusable
        here."""

    def offline(self, target: Target) -> str | None:
        """None if this machine can compile for the target, otherwise the reason in words. Pure: it
        loads no library, and also answers if none is installed."""

    def versions(self) -> dict[str, str]:
        """Distribution name → version of the libraries that compile, read without importing
        them."""

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """Why this backend does not run a precision that the hardware of the target supports; None
        if it does. Pure. (The target's matrix says what the hardware supports.)"""

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """Placement rules of a quantized precision on a target. Pure.

        Raises Impossible, with the reason, for a precision that this backend does not run.
        """

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Target,
        precision: Precision,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Pure. Raises UsageError for ranges with min > opt or opt > max."""

    def accept(self, model: Path) -> None:
        """Raise InputRefused, with a hint, for an ONNX file with operators that `compile` would
        refuse, as far as this is known without compiling. Runs in a worker."""

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, Precision],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """Compile `model` (ONNX file) into folder `out`; `planned`: node name → precision; `kept`:
        folder for what a library stores about this device; None: it stores nothing.

        Runs in a worker. Raises ToolchainMissing, InputRefused (naming the node) or WorkerFailed.
        """

    def session(self, model: Path, options: SessionOptions = DEFAULT_OPTIONS) -> Recurrent:
        """Load an engine (or ONNX file) for running on this machine. Raises ToolchainMissing
        without the library or the device, or on another device than `options.target`."""


ONNXRUNTIME_WHEELS = ("onnxruntime", "onnxruntime-gpu")
"""They share a folder, so only one of them may be installed."""

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "onnxruntime": "optkit.craft.backends.onnxruntime:OnnxRuntime",
        "onnxruntime-coreml": "optkit.craft.backends.ort_providers:CoreMLProvider",
        "onnxruntime-cuda": "optkit.craft.backends.ort_providers:CudaProvider",
        "onnxruntime-tensorrt": "optkit.craft.backends.ort_providers:TensorRTProvider",
        "onnxruntime-tensorrt-rtx": "optkit.craft.backends.ort_rtx:TensorRTRTXProvider",
        "tensorrt": "optkit.craft.backends.tensorrt:TensorRT",
        "tensorrt-rtx": "optkit.craft.backends.tensorrt_rtx:TensorRTRTX",
    }
)

SIMULATOR = "onnxruntime"
"""The backend that runs any graph on any machine: for calibration, comparisons and simulation."""


def backend(name: str) -> Backend:
    """The backend of this name; its module is loaded now. Raises UnknownName."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    module, _, attribute = BACKENDS[name].partition(":")
    instance: Backend = getattr(importlib.import_module(module), attribute)()
    return instance


def simulator() -> Backend:
    """The backend SIMULATOR."""
    return backend(SIMULATOR)
