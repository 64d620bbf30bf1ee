"""A trial: a candidate built for the target as far as its figures, over the store.

size from the compiled engine; latency predicted over its fused layers, or measured beside the
baseline where the target is this machine; noise from the graph that is measured, on the samples of
`survey.probe`. A simulation has FP32 carriers, so the carrier's own noise is added to its.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optkit import pipeline
from optkit.errors import InputRefused, WorkerFailed
from optkit.execute.runner import Steps
from optkit.measurement import Deviation
from optkit.pipeline import Build, Job
from optkit.pipeline.graphs import sample_batch
from optkit.precisions import precision
from optkit.recipe import Placement, Recipe
from optkit.steps import GRAPH
from optkit.steps.bench import Timed, TimedPair
from optkit.steps.deviate import Deviate
from optkit.steps.predict import PredictedLatency
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
    placements: Mapping[str, Placement]
    baseline_ms: float = 1.0  # what measured latencies are shares of
    carrier_noise: float = 0.0  # what a simulation leaves out

    def __call__(self, candidate: Candidate) -> Outcome:
        """Build it and look. A candidate that cannot be built or run is a failed outcome: for good
        where it was refused, for now where a worker died of it (of time, memory or a signal)."""
        job = self.as_job(candidate)
        bench = job.recipe.bench.model_copy(update={"batches": (), "seconds": _BENCH_SECONDS})
        job = replace(job, recipe=job.recipe.model_copy(update={"bench": bench}))
        try:
            build = pipeline.run(job, self.runner, pipeline.BENCH)
            deviation = deviate(build, "graph", self.runner)
        except (InputRefused, WorkerFailed) as error:
            return Outcome.failure(error.line, transient=isinstance(error, WorkerFailed))
        left_out = 0.0 if build.measured or build.is_baseline else self.carrier_noise
        return _outcome(build, deviation, self.baseline_ms, left_out)

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
        most = max(used, key=lambda name: layers[name])  # of equals the first
        nodes, two_term = dict(self.job.recipe.quantization.nodes), []
        for group, option in zip(self.space.groups, chosen, strict=True):
            patterns = [exactly(node) for node in group.nodes]
            if option.precision != most:
                nodes |= dict.fromkeys(patterns, option.precision)
            two_term += patterns if option.is_two_term else []
        section = self.job.recipe.quantization
        placement = self.placements.get(candidate.placement, section.placement)
        return replace(
            self.job,
            precision=precision(most),
            recipe=_quantized(
                self.job.recipe,
                nodes=nodes,
                two_term=(*section.two_term, *two_term),
                placement=placement.model_dump(),
            ),
        )


def _quantized(recipe: Recipe, **settings: object) -> Recipe:
    """The recipe with these settings in its section on quantization."""
    section = recipe.quantization
    quantization = type(section).model_validate({**section.model_dump(), **settings})
    return recipe.model_copy(update={"quantization": quantization})


def deviate(build: Build, role: str, runner: Steps) -> Deviation:
    """How far the outputs of a build's "graph" or "baseline" are from those of the FP32 graph."""
    step = Deviate(
        graph=build.graph if role == "graph" else build.baseline, reference=build.fused,
        samples=probe(build, runner), file=build.simulation if role == "graph" else GRAPH,
        evidence=build.evidence, count=PROBE_SAMPLES, batch=sample_batch(build),
    )  # fmt: skip
    return runner.do(step, "compare with FP32").deviation


def _outcome(build: Build, deviation: Deviation, baseline_ms: float, left_out: float) -> Outcome:
    graph, engine = build.graph, build.engine.engine if build.engine is not None else None
    names = [name for name in graph.files if name.startswith(GRAPH)]
    return Outcome(
        noise=deviation.noise + left_out,
        latency_ms=_latency(build, baseline_ms),
        bytes=engine.bytes if engine else sum(graph.file(n).stat().st_size for n in names),
        divergence=deviation.divergence,
        landed=engine.landing.landed if engine else None,
        planned=engine.landing.planned if engine else None,
        bytes_moved=engine.bytes_moved if engine else None,
        layers=len(engine.layers) if engine else None,
    )


def _latency(build: Build, baseline_ms: float) -> float:
    """Milliseconds at the batch size that is tuned for. Measured ones relative to the baseline in
    the same rounds, so that trials at different times can be compared; the fastest runs of both,
    which a busy machine disturbs least."""
    if isinstance(build.latency, PredictedLatency):
        return build.latency.latency.p50_ms
    row = measured_row(build)
    assert row.engine.min_ms is not None and row.baseline.min_ms is not None
    return baseline_ms * row.engine.min_ms / row.baseline.min_ms


def measured_row(build: Build) -> TimedPair:
    """At the batch size that is tuned for."""
    assert isinstance(build.latency, Timed)
    return next(row for row in build.latency.rows if row.engine.batch == (build.batch or 1))
