"""A trial: a candidate built for the target as far as its figures, over the store.

size from the compiled engine; latency predicted over its fused layers, or measured beside the
baseline where the target is this machine; noise from the graph that is measured, on the samples of
`survey.probe`. A simulation has FP32 carriers, so the carrier's own noise is added to its.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optkit import pipeline
from optkit.errors import InputRefused, WorkerFailed
from optkit.execute.runner import Steps
from optkit.measurement import Deviation, Latency
from optkit.pipeline import Build, Job
from optkit.pipeline.graphs import sample_batch
from optkit.precisions import precision
from optkit.recipe import Recipe
from optkit.steps import GRAPH
from optkit.steps.deviate import Deviate
from optkit.tuning.space import Candidate, Outcome, Space
from optkit.tuning.survey import PROBE_SAMPLES, exactly, probe

_BENCH_SECONDS = 1.0


@dataclass(frozen=True)
class Trials:
    """Evaluates candidates of one space. `job`: what was asked for; `precisions`: the quantized
    ones that are searched; `placements`: name → its settings in a recipe."""

    job: Job
    space: Space
    precisions: tuple[str, ...]
    runner: Steps
    placements: Mapping[str, Mapping[str, Any]]
    baseline_ms: float = 1.0  # what measured latencies are shares of
    carrier_noise: float = 0.0  # what a simulation leaves out

    def __call__(self, candidate: Candidate) -> Outcome:
        """Build it and look. A candidate that cannot be built or run is a failed outcome: for good
        where it was refused, for now where a worker died of it (of time, memory or a signal)."""
        job = self.as_job(candidate)
        bench = job.recipe.bench.model_copy(update={"batches": (), "seconds": _BENCH_SECONDS})
        job = replace(job, recipe=job.recipe.model_copy(update={"bench": bench}))
        try:
            made = pipeline.run(job, self.runner, pipeline.BENCH)
            deviation = deviate(made, "graph", self.runner)
        except (InputRefused, WorkerFailed) as error:
            return Outcome.failure(error.line, transient=isinstance(error, WorkerFailed))
        left_out = 0.0 if made.measured or made.is_baseline else self.carrier_noise
        return _outcome(made, deviation, self.baseline_ms, left_out)

    def as_job(self, candidate: Candidate) -> Job:
        """The build that the candidate stands for. The precision that most layers have is the
        build's own, the others are exceptions of its recipe."""
        chosen = [self.space.option(i, name) for i, name in enumerate(candidate.options)]
        layers: Counter[str] = Counter()
        for group, option in zip(self.space.groups, chosen, strict=True):
            layers[option.precision] += len(group.nodes)
        used = [name for name in self.precisions if layers[name]]
        if not used:
            return replace(self.job, precision=precision(self.space.carrier))
        own = max(used, key=lambda name: layers[name])  # of equals the first
        nodes, two_term = dict(self.job.recipe.quantization.nodes), []
        for group, option in zip(self.space.groups, chosen, strict=True):
            patterns = [exactly(node) for node in group.nodes]
            if option.precision != own:
                nodes |= dict.fromkeys(patterns, option.precision)
            two_term += patterns if option.is_two_term else []
        found = {"nodes": nodes, "two_term": (*self.job.recipe.quantization.two_term, *two_term)}
        return replace(
            self.job,
            precision=precision(own),
            recipe=quantized(self.job.recipe, found | self._placement(candidate)),
        )

    def _placement(self, candidate: Candidate) -> dict[str, Any]:
        settings = self.placements.get(candidate.placement)
        return {"placement": dict(settings)} if settings else {}


def quantized(recipe: Recipe, found: Mapping[str, Any]) -> Recipe:
    """The recipe with these settings in its section on quantization."""
    section = recipe.quantization
    settings = type(section).model_validate({**section.model_dump(), **found})
    return recipe.model_copy(update={"quantization": settings})


def deviate(made: Build, role: str, runner: Steps) -> Deviation:
    """How far the outputs of a build's "graph" or "baseline" are from those of the FP32 graph."""
    step = Deviate(
        graph=made.entries[role], reference=made.entries["fused"], samples=probe(made, runner),
        file=made.simulation if role == "graph" else GRAPH, evidence=made.evidence,
        count=PROBE_SAMPLES, batch=sample_batch(made),
    )  # fmt: skip
    return runner.do(step, "compare with FP32").deviation


def _outcome(made: Build, deviation: Deviation, baseline_ms: float, left_out: float) -> Outcome:
    compiled, graph = made.entries.get("engine"), made.entries["graph"]
    engine = compiled.meta["engine"] if compiled else None
    names = [name for name in graph.files if name.startswith(GRAPH)]
    landing = engine["landing"] if engine else {}
    return Outcome(
        noise=deviation.noise + left_out,
        latency_ms=_latency(made, baseline_ms),
        bytes=engine["bytes"] if engine else sum(graph.file(n).stat().st_size for n in names),
        divergence=deviation.divergence,
        landed=landing.get("landed"),
        planned=landing.get("planned"),
        bytes_moved=engine and engine["bytes_moved"],
        layers=engine and len(engine["layers"]),
    )


def _latency(made: Build, baseline_ms: float) -> float:
    """Milliseconds at the batch size that is tuned for. Measured ones relative to the baseline in
    the same rounds, so that trials at different times can be compared; the fastest runs of both,
    which a busy machine disturbs least."""
    if not made.measured:
        return Latency.from_json(made.entries["latency"].meta["latency"]).p50_ms
    row = measured_row(made)
    engine, baseline = (Latency.from_json(row[side]).min_ms for side in ("engine", "baseline"))
    assert engine is not None and baseline is not None
    return baseline_ms * engine / baseline


def measured_row(made: Build) -> dict[str, Any]:
    """Engine, baseline and speedup at the batch size that is tuned for."""
    rows = made.entries["latency"].meta["rows"]
    found: dict[str, Any] = next(row for row in rows if row["engine"]["batch"] == (made.batch or 1))
    return found
