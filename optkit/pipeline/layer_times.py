"""The time of each layer of a finished artifact, for the rules of `explain`."""

from __future__ import annotations

from optkit.artifact import MODEL, Artifact
from optkit.devices import gpus, target
from optkit.documents.report import Report
from optkit.errors import IntegrityError, ToolchainMissing, UnsafeFile
from optkit.evidence import Evidence
from optkit.execute.runner import Steps
from optkit.execute.step import Foreign
from optkit.explanation import Subject, Times
from optkit.pipeline.engines import kept
from optkit.pipeline.finish import recorded, staged_graph, whole_recipe
from optkit.pipeline.job import machine
from optkit.prediction.fitted import fitted
from optkit.report.contract import REPORT_FILE, report_of
from optkit.runtimes import backend
from optkit.steps.attribute import Attribute, EngineProfile, Kernels, PredictedLayers
from optkit.steps.sessions import DeviceSession

_SECONDS = 2.0  # of profiled runs, each side


def subject(artifact: Artifact, runner: Steps) -> Subject:
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


def _times(artifact: Artifact, report: Report, runner: Steps) -> Times | None:
    device = target(artifact.manifest.target)
    spec = report.provenance.build_spec.get("engine")
    if spec is None:
        raise IntegrityError(
            "provenance.build_spec.engine: is missing, but layers lists the layers of an engine",
            where=str(artifact.path / REPORT_FILE),
        )
    shapes = {name: ends[1] for name, ends in spec.profile.items()}
    host = machine(device)
    if backend(spec.backend).traits.on_cpu:
        # with the same number of threads as the latency
        kernels = Kernels(shapes, _SECONDS, host, recorded(artifact).bench.threads)
        return _attributed(artifact, runner, kernels, Evidence.MEASURED, "profiled on this machine")
    reason = "to time the engine itself, the device is needed"
    if device.name in {gpu.target for gpu in gpus().devices}:
        note = "the engine's own profiler on this machine"
        try:
            artifact.require_own_engine()
            profile = EngineProfile(
                spec.backend, _engine_files(artifact), DeviceSession(device.name), shapes, _SECONDS,
                host,
            )  # fmt: skip
            return _attributed(artifact, runner, profile, Evidence.MEASURED, note)
        except (ToolchainMissing, UnsafeFile) as error:  # no library, an unknown profile or maker
            reason = error.message
    sides = {"candidate": report.layers.engine, "baseline": report.layers.baseline}
    if not any(layer.inputs or layer.outputs for side in sides.values() for layer in side):
        return None
    predicted = PredictedLayers(sides, device.name, device.fingerprint(), fitted().digest)
    note = f"each compiled layer by the performance model; {reason}"
    return _attributed(artifact, runner, predicted, Evidence.PREDICTED, note)


def _attributed(
    artifact: Artifact,
    runner: Steps,
    way: Kernels | EngineProfile | PredictedLayers,
    evidence: Evidence,
    note: str,
) -> Times:
    """The time of the layers, at the sizes that the engine is tuned for."""
    engines = None
    if isinstance(way, EngineProfile):
        engines = Foreign(artifact.path, artifact.digest)
    axes = {name: span.opt for name, span in recorded(artifact).axis_ranges().items()}
    step = Attribute(
        candidate=staged_graph(artifact.path / MODEL, runner),
        baseline=staged_graph(artifact.baseline_path / MODEL, runner),
        candidate_engine=engines, baseline_engine=engines, axes=axes, way=way,
        kept=None if engines is None else kept(runner),
    )  # fmt: skip
    times = runner.do(step, "time the layers").times
    sizes = "".join(f"; {name} {size}" for name, size in axes.items())
    return Times(evidence, times.candidate, times.baseline, times.nodes, f"{note}{sizes}")


def _engine_files(artifact: Artifact) -> dict[str, str]:
    assert artifact.manifest.engine is not None
    file = artifact.manifest.engine.file
    baseline = artifact.baseline_path.relative_to(artifact.path) / file
    return {"candidate_engine": file, "baseline_engine": str(baseline)}
