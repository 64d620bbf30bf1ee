"""The time of each layer of a finished artifact, and what the rules are asked about it."""

from __future__ import annotations

from typing import Any

from optkit.artifact import MODEL, Artifact
from optkit.devices import gpus, target
from optkit.documents.report import Report
from optkit.errors import IntegrityError, ToolchainMissing, UnsafeFile
from optkit.evidence import Evidence
from optkit.execute.runner import Steps
from optkit.execute.step import Foreign
from optkit.explanation import Subject, Times
from optkit.pipeline.finishing import recorded, staged_graph, whole_recipe
from optkit.pipeline.job import machine
from optkit.pipeline.judging import kept
from optkit.report.contract import REPORT_FILE, report_of
from optkit.runtimes import backend
from optkit.steps import STEPS

_SECONDS = 2.0  # of profiled runs, each side


def subject(artifact: Artifact, runner: Steps) -> Subject:
    """What is known of an artifact of one graph, whose files were verified: its report, and the
    time of its layers. On `cpu` ONNX Runtime is profiled on this machine; an engine whose device
    is here is run and profiled; other layers have their roofline."""
    found = report_of(artifact)
    recipe = whole_recipe(found.provenance.recipe, artifact.path / REPORT_FILE)
    provenance = found.provenance.model_copy(update={"recipe": recipe})
    report = found.model_copy(update={"provenance": provenance})
    if not report.layers.engine or not report.layers.baseline:
        return Subject(report, None, "no engine was compiled")
    times = _times(artifact, report, runner)
    return Subject(report, times, None if times else "its backend lists no tensors of its layers")


def _times(artifact: Artifact, report: Report, runner: Steps) -> Times | None:
    device = target(artifact.manifest.target)
    spec = report.provenance.build_spec.get("engine")
    if spec is None:
        raise IntegrityError(
            "provenance.build_spec.engine: is missing, and layers tells of an engine",
            where=str(artifact.path / REPORT_FILE),
        )
    shapes = {name: list(ends[1]) for name, ends in spec.profile.items()}
    timed = {"shapes": shapes, "seconds": _SECONDS, "host": machine(device)}
    if backend(spec.backend).traits.on_cpu:
        timed["threads"] = recorded(artifact).bench.threads  # as the latency beside it
        return _attributed(artifact, runner, timed, Evidence.MEASURED, "profiled on this machine")
    why = "the engine's own times need its device"
    if device.name in {gpu.target for gpu in gpus().devices}:
        own = {"backend": spec.backend, "session": {"target": device.name}}
        note = "the engine's own profiler on this machine"
        try:
            artifact.require_own_engine()
            return _attributed(artifact, runner, {**timed, **own}, Evidence.MEASURED, note)
        except (ToolchainMissing, UnsafeFile) as error:  # no library, an unknown profile or maker
            why = error.message
    sides = {"candidate": report.layers.engine, "baseline": report.layers.baseline}
    if not any(layer.inputs or layer.outputs for side in sides.values() for layer in side):
        return None
    layers = {name: [layer.to_json() for layer in side] for name, side in sides.items()}
    bounded = {"layers": layers, "name": device.name, "target": device.fingerprint()}
    note = f"a roofline bound of each compiled layer; {why}"
    return _attributed(artifact, runner, bounded, Evidence.PREDICTED, note)


def _attributed(
    artifact: Artifact, runner: Steps, params: dict[str, Any], evidence: Evidence, note: str
) -> Times:
    """The step `attribute` with these parameters, at the sizes tuned for; of engines where they
    name a backend."""
    inputs = {"candidate": staged_graph(artifact.path / MODEL, runner),
              "baseline": staged_graph(artifact.path / "baseline" / MODEL, runner)}  # fmt: skip
    here = {}
    if "backend" in params:
        assert artifact.manifest.engine is not None
        file, folder = artifact.manifest.engine["file"], Foreign(artifact.path, artifact.digest)
        files = {"candidate_engine": file, "baseline_engine": f"baseline/{file}"}
        inputs |= dict.fromkeys(files, folder)
        params, here = {**params, "engines": files}, kept(runner)
    axes = {name: span.opt for name, span in recorded(artifact).axis_ranges().items()}
    entry = runner.step(
        STEPS["attribute"].kind, "time the layers", inputs, {"axes": axes, **params}, here
    )
    sizes = "".join(f"; {name} {size}" for name, size in axes.items())
    return Times.from_json({**entry.meta["times"], "evidence": evidence, "note": f"{note}{sizes}"})
