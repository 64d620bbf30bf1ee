"""Acceptance test of a GPU host: does what optkit needs of a card work there, within limits?

    python experiments/gpu/check.py --dry                 what would run, and what this host lacks
    python experiments/gpu/check.py --out results.json    with a small graph of its own
    python experiments/gpu/check.py ARTIFACT --out results.json  an artifact's graph, its `finish`

Each check runs in a process of its own with a time limit. Exit code 0: all that ran passed (what a
host lacks is skipped, and named); 3: a check failed; 4: nothing could run. torch with CUDA is
enough for most. The limits stand in acceptance.py, the kernels in kernels.py, the runtimes in
engines.py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import acceptance
import engines
import kernels
import numpy as np
from acceptance import Beyond, Check, Outcome

from optkit.craft.backends.cuda import Cuda
from optkit.craft.backends.torch_kernels import TorchKernels
from optkit.craft.benchmarking import latency, machine_state
from optkit.facts import errors
from optkit.facts.measurement import Conditions, GpuConditions
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.artifact import Artifact
from optkit.ground.devices import Gpu, Target, target
from optkit.ground.runtimes import backend
from optkit.road.pipeline import tool_versions

_SECONDS = 5.0  # of two sessions timed in turn
_PRODUCTS = 50  # in the faster of them
_SIDE = 2048
_SMALL = 1 << 20
_OPTKIT = "from optkit.cli import main; main()"


# ── what a check needs ─────────────────────────────────────────────────────────────────────────


@cache
def device() -> Gpu | str:
    """The first GPU, or why there is none."""
    try:
        with Cuda() as found:
            return found.gpu
    except errors.OptkitError as error:
        return str(error)


def driver_here() -> str | None:
    found = device()
    return found if isinstance(found, str) else None


def described_target() -> str | None:
    """The card has to be one of the table: predictions and engines are made for a target."""
    found = device()
    if isinstance(found, str):
        return found
    return None if found.target else f"no target describes {found.name}"


def torch_here() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    found = importlib.import_module("torch").cuda.is_available()
    return None if found else "torch has no CUDA device"


def binding_here() -> str | None:
    found = importlib.util.find_spec("pynvml")
    return None if found else "nvidia-ml-py is not installed (extra: gpu)"


def runtime_here(name: str) -> str | None:
    """A backend's library. What it lacks on this device is its check's failure."""
    try:
        backend(name).check()
    except errors.ToolchainMissing as error:
        return str(error)
    return None


def compiles_here() -> str | None:
    """TensorRT-RTX compiles for some compute capabilities alone."""
    return described_target() or backend("tensorrt-rtx").offline(here())


def here() -> Target:
    found = device()
    assert isinstance(found, Gpu) and found.target is not None
    return target(found.target)


# ── the checks ─────────────────────────────────────────────────────────────────────────────────


def driver_calls() -> dict[str, Any]:
    """Memory in both directions, at addresses of all 64 bits; events; what is freed comes back."""
    with Cuda() as found:
        before = found.free_bytes()
        sent, back = np.arange(4 * _SMALL, dtype=np.float32), np.zeros(4 * _SMALL, np.float32)
        place = found.allocate(sent.nbytes)
        begin, end = found.events(2)
        found.stamp(begin)
        found.upload(place, sent)
        found.download(back, place)
        found.stamp(end)
        found.synchronize()
        gpu, spent = found.gpu, found.elapsed_ms(begin, end)
        figures = {
            "name": gpu.name, "memory_bytes": gpu.memory_bytes, "driver": gpu.driver,
            "compute_capability": gpu.compute_capability, "target": gpu.target,
            "address": hex(place), "copy_gbs": 2 * sent.nbytes / max(spent, 1e-6) / 1e6,
            "free_bytes": before,
        }  # fmt: skip
        if not np.array_equal(sent, back):
            raise Beyond("what came back from the device is not what was sent", figures)
        if not spent > 0:
            raise Beyond("the events tell no time", figures)
        found.free(place)
        if found.free_bytes() < before - (64 << 20):
            raise Beyond("memory that was freed did not come back", figures)
    return figures


def capture() -> dict[str, Any]:
    """Kernels recorded and replayed on other values; after a launch that cannot be recorded the
    stream takes launches again."""
    torch = importlib.import_module("torch")
    x = torch.ones(1024, device="cuda")
    with Cuda() as found:
        stream = torch.cuda.ExternalStream(found.stream)
        y = torch.zeros_like(x)

        def launch() -> None:
            with torch.cuda.stream(stream):
                torch.mul(x, 2, out=y)

        launch()
        found.synchronize()
        handle = found.record(launch)
        x.fill_(3)
        torch.cuda.synchronize()
        found.replay(handle)
        found.synchronize()
        if float(y.min()) != 6:
            raise Beyond("a replay did not compute with the new values", {"y": float(y.min())})
        refused = None
        try:
            found.record(found.synchronize)  # waiting cannot be recorded
        except errors.WorkerFailed as error:
            refused = error.message
        x.fill_(4)
        torch.cuda.synchronize()
        launch()
        found.synchronize()
        figures = {"refused": refused, "y": float(y.min())}
        found.forget(handle)
        if refused is None or figures["y"] != 8:
            raise Beyond("a launch that cannot be recorded spoils the stream", figures)
    return figures


def out_of_memory() -> dict[str, Any]:
    """More than there is: a verdict, no crash, and memory is to be had afterwards."""
    with Cuda() as found:
        free = found.free_bytes()
        try:
            found.allocate(2 * (found.gpu.memory_bytes or free))
        except errors.WorkerFailed as error:
            verdict = error.verdict
        else:
            raise Beyond("twice the memory of the device was given", {"free_bytes": free})
        found.free(found.allocate(_SMALL))
    if verdict != "oom":
        raise Beyond(f"the verdict is {verdict}", {"free_bytes": free})
    return {"free_bytes": free, "verdict": verdict}


class Products:
    """A session of `count` products on the card, host to host as an engine's."""

    inputs = outputs = (TensorInfo("x", "float32", (1,)),)

    def __init__(self, count: int) -> None:
        self._torch = importlib.import_module("torch")
        self._x = self._torch.randn((_SIDE, _SIDE), device="cuda", dtype=self._torch.half)
        self._count = count

    def run(self, feed: Feed) -> Feed:
        for _ in range(self._count):
            self._x @ self._x
        self._torch.cuda.synchronize()
        return feed

    def close(self) -> None: ...

    def __enter__(self) -> Products:
        return self

    def __exit__(self, *exc: object) -> None: ...


def race(count: int) -> Any:
    """The ratio of two sessions that are timed as any build's: `_PRODUCTS` over `count` of them."""
    found = latency.measure(
        {"baseline": lambda: Products(_PRODUCTS), "engine": lambda: Products(count)},
        lambda batch: {"x": np.zeros(1, np.float32)},
        [1],
        seconds=_SECONDS,
        warmup_seconds=_SECONDS,
        progress=lambda what, done: None,
    )
    return latency.ratio(found["baseline", 1], found["engine", 1])


def telemetry() -> dict[str, Any]:
    """What NVML tells while the card works, and what is made of it."""
    session = Products(_PRODUCTS)
    with machine_state.watched(gpu=True) as watch:
        for _ in range(100):
            session.run({})
            watch.look()
    found = watch.conditions.gpu or GpuConditions(reason="NVML was not asked")
    marks = machine_state.judge(Conditions(gpu=found))
    figures: dict[str, Any] = {"gpu": found.to_json(), "marks": marks}
    gpu = device()
    driver = None if isinstance(gpu, str) else gpu.driver
    if found.reason:
        raise Beyond(found.reason, figures)
    missing = [n for n in ("clock_mhz", "temperature_c") if not getattr(found, n)]
    if missing:
        raise Beyond(f"NVML does not tell {', '.join(missing)}", figures)
    if not re.fullmatch(r"\d+(\.\d+)+", driver or ""):
        raise Beyond(f"{driver!r} is no version of a driver", figures)
    return {**figures, "driver": driver}


def predictions() -> dict[str, Any]:
    card, torch = here(), TorchKernels()
    return acceptance.covered(
        [
            kernels.compared(kernel, card, torch.milliseconds(kernel))
            for kernel in kernels.kernels(card)
        ]
    )


def finished(artifact: Path) -> dict[str, Any]:
    """`optkit finish` of a copy: it ends well, and what was pending is measured."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / artifact.name
        shutil.copytree(artifact, copied)
        done = subprocess.run(
            [sys.executable, "-c", _OPTKIT, "finish", str(copied), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    told = json.loads(done.stdout) if done.stdout.strip() else {}
    timed = told.get("latency") or {}
    figures = {
        "exit_code": done.returncode,
        "status": told.get("status"),
        "landing": (told.get("engine") or {}).get("landing"),
        "p50_ms": timed.get("p50_ms"),
        "speedup": told.get("speedup"),
    }
    if done.returncode not in (0, 3):  # 3: a gate failed, which is a result
        raise Beyond(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}", figures)
    if timed.get("evidence") != "measured":
        raise Beyond(f"latency is {timed.get('evidence')} and not measured", figures)
    return figures


def on_runtime(
    artifact: Path | None, work: Callable[[engines.Ways, Target], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """`work` with the graph, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = None if artifact is None else Artifact.load(artifact)
        if loaded is not None:
            loaded.verify()
        return work(engines.Ways(loaded, Path(folder)), here())


def checks(artifact: Path | None) -> list[Check]:
    """All of them, in order."""
    card, torch = (driver_here,), (driver_here, torch_here)
    run = partial(on_runtime, artifact)
    given = (lambda: None if artifact else "no ARTIFACT is given",)
    found = [
        Check("driver", "memory, copies and events of the driver", 60, card, driver_calls),
        Check("capture", "launches recorded, replayed and given up", 60, torch, capture),
        Check("out of memory", "more than there is gives a verdict", 60, card, out_of_memory),
        Check("A/A", "two equal sessions are told equal", 120, torch,
              lambda: acceptance.same(race(_PRODUCTS))),
        Check("10 % slower", "a session with 10 % more work is told slower", 120, torch,
              lambda: acceptance.slower(race(_PRODUCTS + _PRODUCTS // 10))),
        Check("NVML", "clock, power, temperature and the driver's version", 120,
              (*torch, binding_here), telemetry),
        Check("predictor", "100 kernels of this card inside their intervals", 900,
              (*torch, described_target), predictions),
    ]  # fmt: skip
    for name in ("onnxruntime-cuda", "onnxruntime-tensorrt", "onnxruntime-tensorrt-rtx"):
        needs = (*card, described_target, partial(runtime_here, name))
        found.append(Check(
            name, "the graph on ONNX Runtime's provider", 600, needs,
            partial(run, lambda ways, at, name=name: ways.timed(ways.opened(name, ways.model, at))),
        ))  # fmt: skip
    for name in ("tensorrt", "tensorrt-rtx"):
        needs = (*card, described_target, partial(runtime_here, name))
        needs += (compiles_here,) if name == "tensorrt-rtx" else ()
        found += [
            Check(name, "an engine built, described, run and recorded", 1200, needs,
                  partial(run, lambda ways, at, name=name: ways.engine(name, at))),
            Check(f"{name}, time of layers", "the engine's own profiler", 1200, needs,
                  partial(run, lambda ways, at, name=name: ways.layers(name, at))),
            Check(f"{name}, memory", "what an engine takes on the device", 1200, needs,
                  partial(run, lambda ways, at, name=name: ways.memory(name, at))),
        ]  # fmt: skip
    full = (*card, described_target, partial(runtime_here, "tensorrt"))
    found.append(Check("tensorrt, built again", "the same timings give the same engine", 2400, full,
                       partial(run, lambda ways, at: ways.repeated(at))))  # fmt: skip
    found += [
        Check(f"tensorrt, {option}", f"the rule beside the default, {default}", 2400, full,
              partial(run, lambda ways, at, option=option: ways.option(option, at)))
        for option, default in engines.DEFAULTS.items()
    ]  # fmt: skip
    if_given = (*given, *card, described_target)
    found.append(Check("finish", "`optkit finish` measures the artifact", 3600, if_given,
                       lambda: finished(artifact or Path())))  # fmt: skip
    return found


# ── the command ────────────────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("artifact", type=Path, nargs="?", help="its graph is run, and finished")
    parser.add_argument("--out", type=Path, help="write the results there, as JSON")
    parser.add_argument("--only", action="append", metavar="NAME", help="this check alone")
    parser.add_argument("--dry", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("--apart", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    every = checks(args.artifact)
    known = [check.name for check in every]
    if unknown := sorted(set(args.only or ()) - set(known)):
        parser.error(f"no check {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [check for check in every if not args.only or check.name in args.only]
    if args.apart:  # in the process of its own
        args.apart.write_text(json.dumps(acceptance.run(chosen[0]).to_json()))
        return 0
    if args.dry:
        for check in chosen:
            why = check.missing()
            print(f"{check.name}: {check.about}; at most {check.limit:.0f} s"
                  + (f" — skipped here: {why}" if why else ""))  # fmt: skip
        return 0
    outcomes = []
    for check in chosen:
        outcome = ran(check, args.artifact)
        outcomes.append(outcome)
        print(f"{check.name}: {outcome.status} {outcome.reason or ''}".rstrip(), flush=True)
    if args.out:
        args.out.write_text(json.dumps(document(outcomes, args.artifact), indent=1) + "\n")
    return acceptance.exit_code(outcomes)


def ran(check: Check, artifact: Path | None) -> Outcome:
    if (why := check.missing()) is not None:  # no process is needed to say so
        return Outcome(check.name, "skipped", reason=why)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        command = [sys.executable, __file__, *([str(artifact)] if artifact else []),
                   "--only", check.name, "--apart", str(out)]  # fmt: skip
        found = acceptance.run_apart(check.name, check.limit, command, out)
    return replace(found, seconds=round(found.seconds, 2))


def document(outcomes: Sequence[Outcome], artifact: Path | None) -> dict[str, Any]:
    """Results as JSON: `evidence` is pending until something ran on a card."""
    found = device()
    loaded = None if artifact is None else Artifact.load(artifact)
    return {
        "schema": "optkit.gpu-acceptance/v1",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": None if isinstance(found, str) else {
            "name": found.name, "memory_bytes": found.memory_bytes, "driver": found.driver,
            "compute_capability": found.compute_capability, "target": found.target,
        },
        "artifact": None if loaded is None else {"name": loaded.name, "digest": loaded.digest},
        "versions": tool_versions(),
        "evidence": "measured" if any(one.status == "passed" for one in outcomes) else "pending",
        "exit_code": acceptance.exit_code(outcomes),
        "limits": {"same": acceptance.SAME, "seen": list(acceptance.SEEN),
                   "close": acceptance.CLOSE, "covered": acceptance.COVERED},
        "checks": [one.to_json() for one in outcomes],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
