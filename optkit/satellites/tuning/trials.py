"""A trial: a candidate is built for the target, through the store, until its figures are known.

The size is that of the compiled engine. The latency is predicted for the compiler that serves, or
measured together with the baseline if the target is this machine. The noise is that of the graph on
the samples of `survey.probe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optkit.facts.errors import InputRefused, WorkerFailed
from optkit.facts.measurement import Deviation
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground.execute.runner import Steps
from optkit.ground.recipe import Placement, Recipe
from optkit.road import pipeline
from optkit.road.pipeline import Build, Job
from optkit.road.pipeline.run_samples import sample_batch
from optkit.road.steps.bench import BenchResult, TimedPair
from optkit.road.steps.deviate import Deviate
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.predict import PredictedLatency
from optkit.satellites.tuning.space import Candidate, Outcome, Space
from optkit.satellites.tuning.survey import PROBE_SAMPLES, exactly, probe

_BENCH_SECONDS = 1.0


@dataclass(frozen=True)
class Trials:
    """Evaluates candidates of one space. `job`: the job of the search; `precisions`: the quantized
    precisions of the search; `placements`: name → its settings in a recipe."""

    job: Job
    space: Space
    precisions: tuple[Precision, ...]
    runner: Steps
    placements: Mapping[str, Placement]
    baseline_ms: float = 1.0  # measured latencies are multiples of this one

    def __call__(self, candidate: Candidate) -> Outcome:
        """Build a candidate and return its figures. A candidate that cannot be built or run is a
        failed outcome: a permanent one if it was refused, a transient one if a worker ended (for
        time, memory or a signal)."""
        job = self.as_job(candidate)
        bench = job.recipe.bench.model_copy(update={"batches": (), "seconds": _BENCH_SECONDS})
        job = replace(job, recipe=job.recipe.model_copy(update={"bench": bench}))
        try:
            build = pipeline.run(job, self.runner, pipeline.BENCH)
            deviation = deviate(build, self.runner)
        except (InputRefused, WorkerFailed) as error:
            return Outcome.failure(error.line, transient=isinstance(error, WorkerFailed))
        return _outcome(build, deviation, self.baseline_ms)

    def as_job(self, candidate: Candidate) -> Job:
        """The build of the candidate. The precision of the build is the one that most layers have;
        the others are exceptions in its recipe."""
        chosen = [self.space.option(i, name) for i, name in enumerate(candidate.options)]
        layers: Counter[Precision] = Counter()
        for group, option in zip(self.space.groups, chosen, strict=True):
            layers[option.precision] += len(group.nodes)
        used = [one for one in self.precisions if layers[one]]
        if not used:
            return replace(self.job, precision=PRECISIONS[self.space.carrier])
        most = max(used, key=lambda one: layers[one])  # of equally frequent ones the first
        nodes, two_term = dict(self.job.recipe.quantization.nodes), []
        for group, option in zip(self.space.groups, chosen, strict=True):
            patterns = [exactly(node) for node in group.nodes]
            if option.precision != most:
                nodes |= dict.fromkeys(patterns, option.precision)
            two_term += patterns if option.is_two_term else []
        section = self.job.recipe.quantization
        given = () if section.two_term == "auto" else section.two_term
        placement = self.placements.get(candidate.placement, section.placement)
        return replace(
            self.job,
            precision=most,
            recipe=_quantized(
                self.job.recipe,
                nodes=nodes,
                two_term=(*given, *two_term),
                placement=placement.model_dump(),
            ),
        )


def _quantized(recipe: Recipe, **settings: object) -> Recipe:
    """The recipe with these settings in its section `quantization`."""
    section = recipe.quantization
    quantization = type(section).model_validate({**section.model_dump(), **settings})
    return recipe.model_copy(update={"quantization": quantization})


def deviate(build: Build, runner: Steps) -> Deviation:
    """The noise of the outputs of a build's graph relative to the FP32 graph."""
    step = Deviate(
        graph=build.graph,
        reference=build.fused,
        samples=probe(build, runner),
        file=build.simulation,
        evidence=build.evidence,
        count=PROBE_SAMPLES,
        batch=sample_batch(build),
    )
    return runner.do(step, "compare with FP32").deviation


def _outcome(build: Build, deviation: Deviation, baseline_ms: float) -> Outcome:
    graph, engine = build.graph, build.engine.engine if build.engine is not None else None
    names = [name for name in graph.files if name.startswith(GRAPH)]
    return Outcome(
        noise=deviation.noise,
        latency_ms=_latency(build, baseline_ms),
        bytes=engine.bytes if engine else sum(graph.file(n).stat().st_size for n in names),
        divergence=deviation.divergence,
        landed=engine.landing.landed if engine else None,
        planned=engine.landing.planned if engine else None,
        bytes_moved=engine.bytes_moved if engine else None,
        layers=len(engine.layers) if engine else None,
    )


def _latency(build: Build, baseline_ms: float) -> float:
    """Milliseconds at the tuned batch size. A measured latency is computed relative to the baseline
    in the same rounds, so that trials at different times can be compared. It uses the fastest runs
    of both, because a busy machine disturbs them least."""
    if isinstance(build.latency, PredictedLatency):
        return build.latency.latency.p50_ms
    row = measured_row(build)
    assert row.engine.min_ms is not None and row.baseline.min_ms is not None
    return baseline_ms * row.engine.min_ms / row.baseline.min_ms


def measured_row(build: Build) -> TimedPair:
    """The row at the tuned batch size."""
    assert isinstance(build.latency, BenchResult)
    return next(row for row in build.latency.rows if row.engine.batch == (build.batch or 1))
