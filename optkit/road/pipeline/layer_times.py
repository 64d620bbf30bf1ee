"""The time of each layer of a finished artifact, for the rules of `explain`."""

from __future__ import annotations

from collections.abc import Mapping

from optkit.facts.documents.report import Report
from optkit.facts.errors import IntegrityError, ToolchainMissing, UnsafeFile
from optkit.facts.evidence import Evidence
from optkit.ground.artifact import MODEL, Artifact
from optkit.ground.devices import gpus, target
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.step import Foreign, StepInput
from optkit.ground.runtimes import backend
from optkit.road.pipeline.attribution import (
    PROFILED,
    how_predicted,
    prediction,
    tuned,
    with_evidence,
)
from optkit.road.pipeline.compilation import kept
from optkit.road.pipeline.finishing import recorded, staged_graph, whole_recipe
from optkit.road.pipeline.job import machine
from optkit.road.pipeline.recorded_samples import samples_to_run
from optkit.road.steps.attribute import Attribute, AttributedTimes, EngineProfile, Kernels
from optkit.road.steps.graph import RandomInputs
from optkit.road.steps.sessions import DeviceSession
from optkit.show.explanation import Subject, Times
from optkit.show.report.contract import REPORT_FILE, report_of

_SECONDS = 2.0  # of profiled runs, each side


def subject(artifact: Artifact, runner: Runner) -> Subject:
    """The report of a verified artifact of one graph, and the times of its layers. For `cpu` they
    are from a profile of ONNX Runtime on this machine. If the device of an engine is here, they are
    from a profile of the engine. Otherwise the performance model predicts them."""
    report = report_of(artifact)
    recipe = whole_recipe(report.provenance.recipe, artifact.path / REPORT_FILE)
    if not report.layers.engine or not report.layers.baseline:
        return Subject(report, recipe, None, "no engine was compiled")
    times = _times(artifact, report, runner)
    untimed = None if times else "its backend lists no tensors of its layers"
    return Subject(report, recipe, times, untimed)


def _times(artifact: Artifact, report: Report, runner: Runner) -> Times | None:
    device, axes = target(artifact.manifest.target), tuned(recorded(artifact))
    spec = report.provenance.build_spec.get("engine")
    if spec is None:
        raise IntegrityError(
            "provenance.build_spec.engine: is missing, but layers lists the layers of an engine",
            where=str(artifact.path / REPORT_FILE),
        )
    if artifact.manifest.engine is None or artifact.manifest.engine.backend != spec.backend:
        # what may be opened is decided by the manifest, so nothing else may say what opens it
        raise IntegrityError(
            f"provenance.build_spec.engine.backend: {spec.backend}, but the manifest has another",
            where=str(artifact.path / REPORT_FILE),
        )
    shapes = {name: ends[1] for name, ends in spec.profile.items()}
    host = machine(device)
    if backend(spec.backend).traits.on_cpu:
        # with the same number of threads as the latency
        kernels = Kernels(shapes, _SECONDS, host, recorded(artifact).bench.threads)
        found = _measured(artifact, runner, kernels, axes, _samples(artifact, runner))
        return with_evidence(found, Evidence.MEASURED, PROFILED, axes)
    reason = "to time the engine itself, the device is needed"
    if device.name in {gpu.target for gpu in gpus().devices}:
        try:
            artifact.require_own_engine()
            profile = EngineProfile(
                spec.backend,
                _engine_files(artifact),
                DeviceSession(device.name, plugins=artifact.plugins),
                shapes,
                _SECONDS,
                host,
            )
            found = _measured(artifact, runner, profile, axes)
            note = "the engine's own profiler on this machine"
            return with_evidence(found, Evidence.MEASURED, note, axes)
        except (ToolchainMissing, UnsafeFile) as error:  # no library, an unknown profile or maker
            reason = error.message
    sides = {"candidate": report.layers.engine, "baseline": report.layers.baseline}
    if not any(layer.inputs or layer.outputs for side in sides.values() for layer in side):
        return None
    step = prediction(*_graphs(artifact, runner), sides, device, axes)
    found = runner.do(step, "time the layers")
    how = how_predicted(device, report.result.engine)
    return with_evidence(found, Evidence.PREDICTED, f"{how}; {reason}", axes)


def _measured(
    artifact: Artifact,
    runner: Runner,
    way: Kernels | EngineProfile,
    axes: Mapping[str, int],
    samples: StepInput | None = None,
) -> AttributedTimes:
    candidate, baseline = _graphs(artifact, runner)
    engines = None
    if isinstance(way, EngineProfile):
        engines = Foreign(artifact.path, artifact.digest)
    step = Attribute(
        candidate=candidate,
        baseline=baseline,
        candidate_engine=engines,
        baseline_engine=engines,
        samples=samples,
        axes=axes,
        way=way,
        kept=None if engines is None else kept(runner),
    )
    return runner.do(step, "time the layers")


def _samples(artifact: Artifact, runner: Runner) -> StepInput:
    """The samples of the artifact, else random inputs of its sizes."""
    recipe = recorded(artifact)
    drawn = RandomInputs(recipe.describe(artifact.manifest.inputs), recipe.axis_ranges())
    return samples_to_run(artifact, drawn, runner)


def _graphs(artifact: Artifact, runner: Runner) -> tuple[Foreign, Foreign]:
    files = artifact.path / MODEL, artifact.baseline_path / MODEL
    return staged_graph(files[0], runner), staged_graph(files[1], runner)


def _engine_files(artifact: Artifact) -> dict[str, str]:
    assert artifact.manifest.engine is not None
    file = artifact.manifest.engine.file
    baseline = artifact.baseline_path.relative_to(artifact.path) / file
    return {"candidate_engine": file, "baseline_engine": str(baseline)}
