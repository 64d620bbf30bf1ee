"""What only a GPU can tell, of one artifact: does everything run there, how fast, and do the rules
for build options pay. Writes JSON with date, GPU and versions; a check that cannot run says why.

    python eval/gpu/check.py artifacts/digits-vit-l4-int8 results.json

Each way runs the artifact's graph on random samples: TensorRT and TensorRT-RTX (plain, recorded,
once more with the timings or kernels kept), ONNX Runtime's CUDA and TensorRT providers. Outputs are
compared with ONNX Runtime on the CPU. Of both kinds of engine, what `optkit explain` and the memory
gate measure: the time of each layer, whose sum lies a little above the compute time of a run, and
the device's memory, beside what the compiler states. Then full TensorRT is built with one option at
a time set back to the library's default, so that each rule's effect stands alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from optkit import graph
from optkit.artifact import SIMULATION, Artifact
from optkit.backends.cuda import Cuda
from optkit.backends.landing import products
from optkit.errors import OptkitError, ToolchainMissing
from optkit.pipeline import tool_versions
from optkit.runtime import (
    AxisRange,
    BuildSpec,
    Engine,
    Feed,
    Phased,
    Profiled,
    Session,
    TensorInfo,
    backend,
)
from optkit.steps.memory import on_device
from optkit.target import Target, target

RUNS = 200
SECONDS = 2.0  # of profiled runs
# the library's own value of each option that a rule sets
DEFAULTS = {
    "aux_streams": "builder",
    "optimization_level": 3,
    "timing_iterations": 1,
    "tiling": "NONE",
}


class Checks:
    """The artifact, its feed at the optimum, and what every way's outputs are compared with."""

    def __init__(self, artifact: Artifact, folder: Path) -> None:
        manifest = artifact.manifest
        self.folder, self.model = folder, artifact.model_path
        self.axes = {n: AxisRange(**span) for n, span in manifest.recipe["axes"].items()}
        self.inputs, self.precision = manifest.inputs, manifest.precision
        self.rows: list[dict[str, Any]] = []
        plan = backend("onnxruntime").spec(self.inputs, target("cpu"), "fp32", self.axes)
        self.feed: Feed = {
            info.name: drawn(info, plan.profile[info.name][1]) for info in self.inputs
        }
        simulation = artifact.path / SIMULATION
        graph = simulation if simulation.exists() else self.model
        with backend("onnxruntime").session(graph, level="basic") as session:
            self.expected = session.run(self.feed)

    def check(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """One row: ok with its figures, missing (library, device) or failed, with the reason."""
        started = time.perf_counter()
        try:
            found = {"status": "ok", **work()}
        except OptkitError as error:
            status = "missing" if error.code == "toolchain_missing" else "failed"
            found = {"status": status, "reason": str(error)}
        except Exception as error:
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        self.rows.append(
            {"check": name, "seconds": round(time.perf_counter() - started, 2), **found}
        )
        print(f"{name}: {found['status']} {found.get('reason', found.get('p50_ms', ''))}")

    def spec(self, name: str, device: Target) -> BuildSpec:
        return backend(name).spec(self.inputs, device, self.precision, self.axes)

    def built(self, name: str, spec: BuildSpec) -> Path:
        """The file of an engine of `spec`."""
        return self.compiled(name, spec)[0]

    def compiled(self, name: str, spec: BuildSpec) -> tuple[Path, Engine]:
        """An engine of `spec`, in a folder of its own."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        engine = backend(name).compile(self.model, spec, {}, out, quiet, self.folder / "kept")
        return out / engine.file, engine

    def opened(self, name: str, engine: Path, device: Target, **options: Any) -> Session:
        return backend(name).session(
            engine, target=device.name, kept=self.folder / "kept", **options
        )

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
            apart = []
            if isinstance(session, Phased):
                apart = [asdict(session.phases(self.feed)) for _ in range(RUNS)]
        phases = (
            {name: float(np.median([run[name] for run in apart])) for name in apart[0]}
            if apart
            else None
        )
        off = {
            name: float(np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-9))
            for name, value in self.expected.items()
        }
        quantiles = {f"p{q}_ms": round(float(np.percentile(times, q)), 4) for q in (50, 90, 99)}
        return {**quantiles, "runs": RUNS, "phases": phases, "relative_difference": off}

    def profiled(self, session: Session) -> dict[str, Any]:
        """Medians of what the engine's own profiler tells: of all layers, of those that multiply,
        and of those that its inspector does not list as kernels."""
        with session:
            if not isinstance(session, Profiled):
                raise ToolchainMissing("it does not tell the time of layers")
            rows = session.layer_times(self.feed, products(graph.load(self.model)), SECONDS)
        return {
            "layers": len(rows),
            "together_ms": round(sum(ms for _, ms in rows), 4),
            "products_ms": round(sum(ms for layer, ms in rows if layer.products), 4),
            "unlisted_ms": round(sum(ms for layer, ms in rows if layer.kind == "unlisted"), 4),
        }

    def weighed(self, name: str, spec: BuildSpec, device: Target) -> dict[str, Any]:
        """Memory that an engine takes on the device beyond the CUDA context."""
        file, engine = self.compiled(name, spec)
        found = on_device(lambda: self.opened(name, file, device), self.feed, quiet)
        return {**found, "stated_bytes": engine.stated_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    artifact = Artifact.load(args.artifact)
    artifact.verify()
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(artifact, Path(folder))
        gpu: dict[str, Any] = {}
        checks.check("driver", lambda: gpu.update(described()) or {})
        device = target(gpu.get("target") or artifact.manifest.target)
        run(checks, device)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "target": device.name,
        "artifact": {"name": artifact.name, "digest": artifact.digest},
        "versions": tool_versions(),
        "evidence": "measured" if gpu else "pending",
        "checks": checks.rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def run(checks: Checks, device: Target) -> None:
    """Every way, then the options of full TensorRT one by one."""
    for name in ("tensorrt", "tensorrt-rtx"):
        spec = checks.spec(name, device)
        for recorded in (False, True):
            checks.check(
                f"{name}{', recorded' if recorded else ''}",
                lambda name=name, spec=spec, recorded=recorded: checks.timed(
                    checks.opened(name, checks.built(name, spec), device, cuda_graph=recorded)
                ),
            )
        checks.check(
            f"{name}, time of layers",
            lambda name=name, spec=spec: checks.profiled(
                checks.opened(name, checks.built(name, spec), device)
            ),
        )
        checks.check(
            f"{name}, memory of the device",
            lambda name=name, spec=spec: checks.weighed(name, spec, device),
        )
    checks.check("tensorrt builds the same engine again", lambda: repeated(checks, device))
    for name in ("onnxruntime-cuda", "onnxruntime-tensorrt"):
        checks.check(
            name,
            lambda name=name: checks.timed(checks.opened(name, checks.model, device)),
        )
    for option, value in DEFAULTS.items():
        spec = checks.spec("tensorrt", device)
        if spec.options.get(option) == value:
            continue
        plain = replace(spec, options={**spec.options, option: value})
        checks.check(
            f"tensorrt, {option} = {value} instead of {spec.options.get(option)}",
            lambda plain=plain: checks.timed(
                backend("tensorrt").session(checks.built("tensorrt", plain), target=device.name)
            ),
        )


def quiet(what: str, done: float) -> None:
    """Progress that nobody watches."""


def drawn(info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray:
    """Normal values; of integers, which may be indices, zeros."""
    whole = np.dtype(info.dtype).kind in "iub"
    values = np.zeros(shape) if whole else np.random.default_rng(0).standard_normal(shape)
    return values.astype(info.dtype)


def described() -> dict[str, Any]:
    """The first GPU, after its memory and stream did what they should."""
    with Cuda() as cuda:
        sent, back = np.arange(1 << 20, dtype=np.float32), np.zeros(1 << 20, np.float32)
        place = cuda.allocate(sent.nbytes)
        cuda.upload(place, sent)
        cuda.download(back, place)
        cuda.synchronize()
        if not np.array_equal(sent, back):
            raise RuntimeError("what came back from the device is not what was sent")
        gpu = cuda.gpu
        return {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "driver": gpu.driver,
                "compute_capability": gpu.compute_capability, "target": gpu.target}  # fmt: skip


def repeated(checks: Checks, device: Target) -> dict[str, Any]:
    """Two builds with the timings of the first: the same kernels, so the same bytes?"""
    spec = checks.spec("tensorrt", device)
    one, other = (checks.built("tensorrt", spec).read_bytes() for _ in range(2))
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return {"identical": one == other, "bytes": len(one), "equal_bytes": same}


if __name__ == "__main__":
    main()
