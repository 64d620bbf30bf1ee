"""Two artifacts of one target, timed in one run on this target, for `bench --against`.

Engines, samples and settings are those of the artifacts; nothing is built. Every call measures
again, because a result from the store would not show a regression.
"""

from __future__ import annotations

from collections.abc import Sequence

from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.precisions import precision
from optkit.facts.tensors import AxisRange
from optkit.ground.artifact import Artifact
from optkit.ground.devices import Target
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.step import Foreign, StepInput
from optkit.ground.runtimes import backend
from optkit.road.pipeline.finishing import baseline_of, recorded, staged_graph
from optkit.road.pipeline.job import Build, Job
from optkit.road.pipeline.recorded_samples import samples_to_run
from optkit.road.pipeline.timing import Race, race
from optkit.road.steps.bench import BenchResult, BenchSide
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph
from optkit.road.steps.sessions import CpuSession, DeviceSession
from optkit.show.report.contract import report_of


def time_beside(
    candidate: Artifact,
    reference: Artifact,
    target: Target,
    batches: Sequence[int],
    runner: Runner,
    *,
    overrides: Sequence[str] = (),
    strict: bool,
) -> BenchResult:
    """The step `bench` with the candidate as "engine" and the reference as "baseline". `batches`:
    if it is empty, the batch size for which the candidate is tuned. `overrides`: bench.KEY=VALUE
    for both artifacts, how long to time and with how many threads.

    Raises InputRefused if the inputs of the two differ or one has no engine, UsageError for a batch
    size for which one of them was not built, RecipeError for an invalid override.
    """
    ours, theirs = (_restored(each, target, overrides) for each in (candidate, reference))
    odd = set(ours.inputs) ^ set(theirs.inputs)  # in any order: feeds are by name
    for artifact, build in ((candidate, ours), (reference, theirs)):
        for info in build.inputs:
            if info in odd:
                raise InputRefused(
                    "the other artifact has no such input, so these are not versions of one model",
                    where=f"{artifact.path}: input {info.name!r} {info.dtype} {info.shape}",
                )
    models, sides = {}, {}
    for role, artifact in (("engine", candidate), ("baseline", reference)):
        models[role], sides[role] = _side(artifact, role, ours, runner)
    both = Race(
        f"time {candidate.name} beside {reference.name}",
        samples_to_run(candidate, ours.sizes, runner),
        models,
        sides,
        ours.job.recipe.bench,
        _checked(batches, ours, theirs),
        ours.machine,
    )
    return race(both, runner, strict=strict, anew=True)


def _restored(artifact: Artifact, target: Target, overrides: Sequence[str]) -> Build:
    manifest = artifact.manifest
    engine = manifest.engine
    if engine is None:
        raise InputRefused(
            "it has no engine yet", where=str(artifact.path), hint=f"optkit finish {artifact.path}"
        )
    build = Build(
        Job(recorded(artifact).with_overrides(overrides), target, precision(manifest.precision)),
        engine.backend,
        (),
        baseline_of(artifact),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        measured=True,
    )
    build.source = Graph()  # nothing is known of how it was exported
    return build


def _side(
    artifact: Artifact, role: str, build: Build, runner: Runner
) -> tuple[StepInput, BenchSide]:
    """An artifact's engine, and how it is run."""
    engine = artifact.manifest.engine
    assert engine is not None
    compiler = engine.backend
    if backend(compiler).traits.on_cpu:
        session = CpuSession(build.job.recipe.bench.threads)
        graph = staged_graph(artifact.path / engine.file, runner)
        return graph, BenchSide(role, GRAPH, compiler, session)
    artifact.require_own_engine()
    spec = report_of(artifact).provenance.build_spec.get("engine")
    graphs = bool(spec and spec.options.get("cuda_graph", False))
    on_device = DeviceSession(artifact.manifest.target, graphs, artifact.plugins)
    folder = Foreign(artifact.path, artifact.digest)
    return folder, BenchSide(role, engine.file, compiler, on_device)


def _checked(batches: Sequence[int], *builds: Build) -> list[int]:
    spans = [build.batches or AxisRange(1, 1, 1) for build in builds]
    least, most = max(span.min for span in spans), min(span.max for span in spans)
    batches = sorted(set(batches)) or [min(max(spans[0].opt, least), most)]
    for batch in batches:
        if not least <= batch <= most:
            raise UsageError(f"both are built for {least} to {most}", where=f"--batch {batch}")
    return batches
