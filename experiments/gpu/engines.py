"""One graph on every runtime of a GPU host: TensorRT and TensorRT-RTX (plain, recorded, their
layers, their memory), ONNX Runtime's CUDA and TensorRT providers. Outputs are compared with ONNX
Runtime's on the CPU. The graph is an artifact's, or a small one of two products, written here.

Of both kinds of engine, what `optkit explain` and the memory gate measure: the time of each layer,
whose sum lies a little above the compute time of a run, and the device's memory, beside what the
compiler states. And full TensorRT with one option at a time set back to the library's default, so
that each rule's effect stands alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import acceptance
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.backends.landing import products
from optkit.facts.engines import BuildSpec, Engine
from optkit.facts.errors import ToolchainMissing
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, Feed, TensorInfo
from optkit.ground import graph
from optkit.ground.artifact import SIMULATION, Artifact
from optkit.ground.devices import Target, target
from optkit.ground.runtimes import (
    NotedSession,
    PhasedSession,
    ProfiledSession,
    Session,
    SessionOptions,
    backend,
)
from optkit.road.steps.bodies.peak import on_device

RUNS = 200
SECONDS = 2.0  # of profiled runs
_WIDTH = 256
# the library's own value of each option that a rule sets
DEFAULTS: Mapping[str, Any] = {
    "aux_streams": "builder",
    "optimization_level": 3,
    "timing_iterations": 1,
    "tiling": "NONE",
}


class Ways:
    """A graph, its feed at the optimum, and what every runtime's outputs are compared with.
    `artifact` None: the small graph."""

    def __init__(self, artifact: Artifact | None, folder: Path) -> None:
        self.folder = folder
        if artifact is None:
            self.model = reference = small(folder / "small.onnx")
            self.axes = {"batch": AxisRange(1, 8, 32)}
            self.inputs: tuple[TensorInfo, ...] = (TensorInfo("x", "float32", ("batch", _WIDTH)),)
            self.precision = "fp16"
        else:
            manifest = artifact.manifest
            self.model, simulated = artifact.model_path, artifact.path / SIMULATION
            reference = simulated if simulated.exists() else self.model
            self.axes = {n: AxisRange(**span) for n, span in manifest.recipe["axes"].items()}
            self.inputs, self.precision = manifest.inputs, manifest.precision
        cpu = backend("onnxruntime")
        sizes = cpu.spec(self.inputs, target("cpu"), PRECISIONS["fp32"], self.axes).profile
        self.feed: Feed = {info.name: drawn(info, sizes[info.name][1]) for info in self.inputs}
        with cpu.session(reference, SessionOptions(level="basic")) as session:
            self.expected = session.run(self.feed)

    def spec(self, name: str, device: Target) -> BuildSpec:
        return backend(name).spec(self.inputs, device, PRECISIONS[self.precision], self.axes)

    def compiled(self, name: str, spec: BuildSpec) -> tuple[Path, Engine]:
        """An engine of `spec`, in a folder of its own."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        engine = backend(name).compile(self.model, spec, {}, out, quiet, self.folder / "kept")
        return out / engine.file, engine

    def opened(self, name: str, engine: Path, device: Target, **options: Any) -> Session:
        asked = SessionOptions(target=device.name, kept=self.folder / "kept", **options)
        return backend(name).session(engine, asked)

    def timed(self, session: Session) -> dict[str, Any]:
        """Latency from host to host, its phases (medians) where the session tells them apart, and
        the largest difference from the CPU's outputs relative to their largest value."""
        with session:
            for _ in range(20):
                found = session.run(self.feed)
            times = []
            for _ in range(RUNS):
                started = time.perf_counter()
                session.run(self.feed)
                times.append(1e3 * (time.perf_counter() - started))
            phases = None
            if isinstance(session, PhasedSession):
                apart = [asdict(session.phases(self.feed)) for _ in range(RUNS)]
                phases = {name: float(np.median([run[name] for run in apart])) for name in apart[0]}
        off = {
            name: float(np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-9))
            for name, value in self.expected.items()
        }
        quantiles = {f"p{q}_ms": round(float(np.percentile(times, q)), 4) for q in (50, 90, 99)}
        note = session.note if isinstance(session, NotedSession) else None
        figures = {**quantiles, "runs": RUNS, "phases": phases, "note": note}
        return acceptance.close(off, figures)

    def profiled(self, session: Session) -> dict[str, Any]:
        """Medians of what the engine's own profiler tells: of all layers, of those that multiply,
        and of those that its inspector does not list as kernels."""
        with session:
            if not isinstance(session, ProfiledSession):
                raise ToolchainMissing("it does not report the times of layers")
            rows = session.layer_times(self.feed, products(graph.load(self.model)), SECONDS)
        return {
            "layers": len(rows),
            "together_ms": round(sum(ms for _, ms in rows), 4),
            "products_ms": round(sum(ms for layer, ms in rows if layer.products), 4),
            "unlisted_ms": round(sum(ms for layer, ms in rows if layer.kind == "unlisted"), 4),
        }

    def layers(self, name: str, device: Target) -> dict[str, Any]:
        """As `profiled`, of an engine that is built for it."""
        file, _ = self.compiled(name, self.spec(name, device))
        return self.profiled(self.opened(name, file, device))

    def memory(self, name: str, device: Target) -> dict[str, Any]:
        """Memory that an engine takes on the device beyond the CUDA context."""
        file, engine = self.compiled(name, self.spec(name, device))
        found = on_device(lambda: self.opened(name, file, device), self.feed, quiet)
        return {**found.to_json(), "stated_bytes": engine.stated_bytes}

    def engine(self, name: str, device: Target) -> dict[str, Any]:
        """Built, described, run with launches one by one and recorded."""
        file, built = self.compiled(name, self.spec(name, device))
        figures = {
            "bytes": built.bytes,
            "layers": len(built.layers),
            "note": built.note,
            "landing": asdict(built.landing),
            "launched": self.timed(self.opened(name, file, device)),
            "recorded": self.timed(self.opened(name, file, device, cuda_graph=True)),
        }
        if not built.layers:
            raise acceptance.Beyond("the engine's layers are not understood", figures)
        return figures

    def option(self, name: str, device: Target) -> dict[str, Any]:
        """Full TensorRT as the rule wants it, and with the library's default."""
        asked = self.spec("tensorrt", device)
        plain = replace(asked, options={**asked.options, name: DEFAULTS[name]})
        return {
            key: self.timed(self.opened("tensorrt", self.compiled("tensorrt", one)[0], device))
            for key, one in (("rule", asked), ("default", plain))
        }

    def repeated(self, device: Target) -> dict[str, Any]:
        """Two builds with the timings of the first: the same kernels, so the same bytes?"""
        spec = self.spec("tensorrt", device)
        one, other = (self.compiled("tensorrt", spec)[0].read_bytes() for _ in range(2))
        same = sum(a == b for a, b in zip(one, other, strict=False))
        return {"identical": one == other, "bytes": len(one), "equal_bytes": same}


def small(path: Path) -> Path:
    """Two products with a Relu between them in FP16, float32 outside: any batch."""
    random = np.random.default_rng(0)
    weights = {n: (random.standard_normal((_WIDTH, _WIDTH)) / 16).astype("float16") for n in "ab"}
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], "half", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["half", "a"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "b"], ["o"], "second"),
        helper.make_node("Cast", ["o"], ["y"], "whole", to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ("batch", _WIDTH)) for n in "xy")
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = helper.make_graph(nodes, "small", [x], [y], stored)
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(made, opset_imports=[opset], ir_version=10), path)
    return path


def quiet(what: str, done: float) -> None:
    """Progress that nobody watches."""


def drawn(info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray:
    """Normal values; of integers, which may be indices, zeros."""
    whole = np.dtype(info.dtype).kind in "iub"
    values = np.zeros(shape) if whole else np.random.default_rng(0).standard_normal(shape)
    return values.astype(info.dtype)
