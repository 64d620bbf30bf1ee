from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from optkit.craft.benchmarking import latency, machine_state
from optkit.facts.measurement import DevicePhases, Latency
from optkit.ground.data.spool import Spool
from optkit.ground.devices import cpu
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session, backend
from optkit.road.steps.bench import BenchResult, MeasureLatency, TimedPair
from optkit.road.steps.file_names import TIMES

Phases = dict[int, DevicePhases]  # by batch size


def run(step: MeasureLatency, out: Path, progress: Progress) -> BenchResult:
    samples = Spool(step.samples.path)
    sides = {name: partial(_opened, step, name) for name in step.sides}
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with machine_state.watched(gpu=step.gpu) as watch:
        times = latency.measure(
            sides,
            samples.feed,
            step.batches,
            seconds=step.seconds,
            warmup_seconds=step.warmup_seconds,
            progress=progress,
            between=watch.look,
        )
    marks = tuple(machine_state.judge(watch.conditions))
    phases: dict[str, Phases] = {}
    if step.gpu:
        phases = {name: _phases(open, samples, step.batches) for name, open in sides.items()}
    device = cpu().name
    match step.host:
        case {"gpus": [{"name": str(name)}, *_]} if step.gpu:
            device = name
    known = {
        (name, batch): replace(
            one,
            marks=(*marks, *one.marks),
            phases=phases.get(name, {}).get(batch),
            measured_at=began,
            machine=device,
            from_store=False,
        )
        for (name, batch), one in times.items()
    }
    arrays = {f"{name}/{n}": np.asarray(one.samples_ms) for (name, n), one in known.items()}
    save_file(arrays, out / TIMES)
    rows = [_pair(known["engine", n], known["baseline", n]) for n in step.batches]
    return BenchResult(rows=tuple(rows), conditions=watch.conditions)


def _pair(engine: Latency, baseline: Latency) -> TimedPair:
    """The figures without the single runs, which are in the file of times."""
    speedup = latency.ratio(baseline, engine)
    return TimedPair(replace(engine, samples_ms=()), replace(baseline, samples_ms=()), speedup)


def _phases(open: Callable[..., Session], samples: Spool, batches: Sequence[int]) -> Phases:
    """The phases of a run on a device by batch size, with single launches and as a recorded CUDA
    graph; empty if they cannot be measured separately."""
    launched = latency.phases(partial(open, cuda_graph=False), samples.feed, batches)
    if not launched:
        return {}
    recorded = latency.phases(partial(open, cuda_graph=True), samples.feed, batches)
    return {n: DevicePhases(launched[n], recorded[n]) for n in batches}


def _opened(step: MeasureLatency, name: str, *, cuda_graph: bool | None = None) -> Session:
    """A session of one side. `cuda_graph`: replaces the setting of the side."""
    side = step.sides[name]
    options = side.session.options(step.kept)
    if cuda_graph is not None:
        options = replace(options, cuda_graph=cuda_graph)
    return backend(side.backend).session(step.models[side.input].path / side.file, options)
