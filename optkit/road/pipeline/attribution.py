"""The time of each layer of a build, and the findings of `explain` that follow, for its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from optkit.craft.prediction.card_lookup import measured
from optkit.craft.prediction.fitted import fitted
from optkit.facts.documents.report import BothSides, Report, TimedLayers
from optkit.facts.documents.result import EngineFacts
from optkit.facts.engines import FusedLayer
from optkit.facts.evidence import Evidence
from optkit.facts.timed_layers import TimedLayer
from optkit.ground.devices import Target
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import StepInput
from optkit.ground.recipe import Recipe
from optkit.road.pipeline.job import Build
from optkit.road.steps.attribute import Attribute, AttributedTimes, Kernels
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.padding import CountPadding
from optkit.road.steps.predict_layers import PredictLayers
from optkit.show import explanation
from optkit.show.explanation import Subject, Times
from optkit.show.report.titles import compiler

_SECONDS = 0.3  # of profiled runs, each side
_BYTES_TO_READ = 8  # per parameter: float32, and the copy that the runtime keeps

PROFILED = "profiled on this machine"
_PREDICTED = "each compiled layer by the performance model"


def attribute(build: Build, runner: Steps) -> None:
    """Time the layers of a build. On `cpu` ONNX Runtime profiles its kernels; the layers of an
    engine are predicted, also on its device, where `explain` lets the engine time itself. There are
    no times without an engine, or if the backend lists no layers with sizes."""
    engine, baseline = build.engine, build.baseline_engine
    if engine is None or baseline is None:
        return
    axes = tuned(build.job.recipe)
    if build.traits.on_cpu:
        if _BYTES_TO_READ * build.source.parameters > runner.limits.memory_bytes:
            return
        shapes = {name: ends[1] for name, ends in build.specs["engine"].spec.profile.items()}
        kernels = Kernels(shapes, _SECONDS, build.machine, build.job.recipe.bench.threads)
        step = Attribute(
            candidate=build.graph,
            baseline=build.baseline,
            samples=build.probe,
            axes=axes,
            way=kernels,
        )
        build.layer_times = runner.do(step, "time the layers")
        return
    sides = {"candidate": _listed(engine), "baseline": _listed(baseline)}
    if all(map(_has_sizes, sides.values())) or engine.planned:
        predicted = prediction(build.graph, build.baseline, sides, build.job.target, axes)
        build.layer_times = runner.do(predicted, "predict the time of the layers")


def count_padding(build: Build, runner: Steps) -> None:
    """Count the padding of the samples for which the latency is; random inputs have none."""
    samples = build.evaluation or build.calibration
    if samples is not None:
        build.padding = runner.do(CountPadding(samples=samples), "count the padding of the samples")


def explained(report: Report, build: Build) -> Report:
    """The report of a build with the times of its layers and the findings that follow."""
    times = _of_build(build, report.result.engine)
    try:
        recipe = Recipe.of_record(report.provenance.recipe)
    except ValidationError:  # of a newer optkit, whose artifact is finished here
        return report
    padding = None if build.padding is None else build.padding.tokens
    report = report.model_copy(update={"padding": padding or report.padding})
    found = explanation.explain(Subject(report, recipe, times)).findings
    return report.model_copy(
        update={
            "layer_times": None if times is None else _by_layer(times, report),
            "findings": found,
        }
    )


def _of_build(build: Build, engine: EngineFacts | None) -> Times | None:
    if build.layer_times is None:
        return None
    axes = tuned(build.job.recipe)
    if build.traits.on_cpu:
        return with_evidence(build.layer_times, Evidence.MEASURED, PROFILED, axes)
    how = how_predicted(build.job.target, engine)
    return with_evidence(build.layer_times, Evidence.PREDICTED, how, axes)


def how_predicted(device: Target, engine: EngineFacts | None) -> str:
    """The note on predicted times of the layers of an engine."""
    told, card = _PREDICTED, measured(device).card
    if engine is not None and engine.serving is not None:
        made, serving = compiler(engine.backend), compiler(engine.serving)
        told += f"; {made} compiled them, and {serving}, which serves here, may fuse otherwise"
        told += "; the build predicts its latency from the graph"
    return told if card is None else f"{told}; {card.told}"


def with_evidence(
    found: AttributedTimes, evidence: Evidence, note: str, axes: Mapping[str, int]
) -> Times:
    """The times at the sizes `axes`, with a note on how they are known."""
    sizes = "".join(f"; {name} {size}" for name, size in axes.items())
    return Times(evidence, found.times, f"{note}{sizes}")


def _by_layer(times: Times, report: Report) -> TimedLayers:
    """The times in the order of the layers of a report."""

    def ordered(timed: Sequence[TimedLayer], listed: Sequence[FusedLayer]) -> tuple[float, ...]:
        spent = {one.layer.name: one.ms for one in timed}
        return tuple(spent.get(layer.name, 0.0) for layer in listed)

    return TimedLayers(
        evidence=times.evidence,
        note=times.note or "",
        milliseconds=BothSides(
            engine=ordered(times.layers.candidate, report.layers.engine),
            baseline=ordered(times.layers.baseline, report.layers.baseline),
        ),
    )


def _listed(compiled: CompiledEngine) -> tuple[FusedLayer, ...]:
    """The layers with sizes, as the report lists them; none in a rehearsal."""
    if compiled.planned:
        return ()
    return compiled.engine.static_layers or compiled.engine.layers


def _has_sizes(layers: Sequence[FusedLayer]) -> bool:
    """Whether each layer can be predicted: its sizes are known, and the dtype of its products."""
    tensors = [tensor for layer in layers for tensor in (*layer.inputs, *layer.outputs)]
    fixed = all(size >= 0 for tensor in tensors for size in tensor.shape)
    return bool(tensors) and fixed and not any(row.products and row.dtype is None for row in layers)


def tuned(recipe: Recipe) -> dict[str, int]:
    """The sizes of the named axes that an engine is tuned for."""
    return {name: span.opt for name, span in recipe.axis_ranges().items()}


def prediction(
    candidate: StepInput,
    baseline: StepInput,
    layers: Mapping[str, tuple[FusedLayer, ...]],
    device: Target,
    axes: Mapping[str, int],
) -> PredictLayers:
    """The step that predicts the time of layers."""
    return PredictLayers(
        candidate=candidate,
        baseline=baseline,
        layers=layers,
        device=device.name,
        target=device.fingerprint(),
        fit=fitted().digest,
        axes=axes,
        card=measured(device).card,
    )
