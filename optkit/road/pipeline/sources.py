"""The user's model as one graph, and the user's samples, which are spooled once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol, TypeGuard

from optkit.craft.sources.export_log import ExportLog
from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused, UnsafeFile, UsageError, located
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo, axes_of, size_of
from optkit.ground import intake as stage
from optkit.ground.data.parts import whole
from optkit.ground.data.sequences import IDS, MASK
from optkit.ground.decoder import CONFIG, SpecialTokens, Windows, read_json
from optkit.ground.execute.installed import versions
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import Foreign, StepInput
from optkit.ground.operator_library import OPTION, PLUGINS_NOTE, OperatorLibrary
from optkit.ground.places import Place
from optkit.ground.recipe import Recipe, SampleRole, Source
from optkit.ground.store import Entry
from optkit.road.pipeline.collected import collected, compared
from optkit.road.pipeline.depends import declared, paths
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.sample_checks import check_finite, keep_apart
from optkit.road.pipeline.single_samples import single_sample
from optkit.road.steps.adopt import Adopt
from optkit.road.steps.collect import CollectedSamples, Samples
from optkit.road.steps.divide import Divide
from optkit.road.steps.export import (
    Export,
    ExportedGraph,
    HuggingFaceModel,
    OnnxModel,
    PythonModel,
    TorchArchive,
)
from optkit.road.steps.file_names import ASSETS, GRAPH
from optkit.road.steps.graph import Graph, infos
from optkit.road.steps.random import Random

_NO_TEXT = re.compile("classification|answering|detection|segmentation|extraction|similarity")
_NO_TEXT_CLASS = re.compile(
    "Classification|QuestionAnswering|Detection|Segmentation|(?<!MT)(?<!LMHead)(?<!Decoder)Model$"
)
_HUGGING_FACE = ("transformers", "optimum", "peft")


class _Staged(Protocol):
    """A file or folder that the intake has copied into the store."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...


def export(build: Build, runner: Steps) -> None:
    """source → graph: ONNX, opset ≥ 21, compared with the source model."""
    job = build.job
    graph: Graph
    log = None
    if job.graph is not None:
        graph = runner.do(Adopt(model=job.graph), "adopt the exported graph")
        build.log = _log_of(job.graph)
    else:
        graph = exported = exported_model(job.recipe, job.code, runner)
        recipe = single_sample(job, infos(graph.inputs), runner)
        if recipe is not None:
            build.job = job = replace(job, recipe=recipe)
            graph = exported_model(recipe, job.code, runner)
        build.log = log = exported.log
    build.source = graph
    build.origin = None if log is None else log.origin
    source = job.recipe.source
    if source is not None and source.plugins is not None and not graph.planned:
        build.plugins = OperatorLibrary.of(graph.file(GRAPH), PLUGINS_NOTE)
    if log is not None and log.specs:  # a model that declares its own inputs
        build.job = job = replace(job, recipe=job.recipe.with_inputs(log.specs, log.axes))
        _check_positions(job.recipe, log.positions)
    declared = [(name, part.dtype, part.shape) for name, part in job.recipe.inputs.items()]
    build.inputs = infos(graph.inputs or declared)
    build.outputs = infos(graph.outputs)


def _log_of(graph: StepInput) -> ExportLog | None:
    """The log of an export in the caller's process."""
    log = graph.meta.get("log") if isinstance(graph, Entry) else None
    return None if log is None else from_json(ExportLog, log)


def parts(recipe: Recipe, runner: Steps) -> tuple[str, ...]:
    """The names of the graphs of an encoder-decoder: encoder and decoder. Empty if the model is one
    graph, or if the recipe names one of the two."""
    source = recipe.source
    if source is None or source.kind != "hf" or source.part is not None:
        return ()
    config = json.loads((_hugging_face(source, runner).path / "config.json").read_bytes())
    if not config.get("is_encoder_decoder") or not writes_text(config, source.task):
        return ()
    return ("encoder", "decoder")


def writes_text(config: Mapping[str, object], task: str | None) -> bool:
    """Whether an encoder-decoder writes text. With another head, or as DETR, it is one graph. The
    task decides, otherwise the name of the class."""
    if task is not None:
        return _NO_TEXT.search(task) is None
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return _NO_TEXT_CLASS.search(name) is None


def positions(build: Build, runner: Steps) -> int | None:
    """The number of tokens for which the model has positions: the rows of its table, or the number
    in its files."""
    source = build.job.recipe.source
    log = build.source.log if isinstance(build.source, ExportedGraph) else None
    learned = None if log is None else log.positions
    if learned is not None or source is None or source.kind != "hf":
        return learned
    config = _config(source, runner)
    targets = config.get("max_target_positions")
    return targets if isinstance(targets, int) else SpecialTokens.of(config, {}).context


def windows(build: Build, runner: Steps) -> Windows | None:
    """The sliding windows of a Hugging Face model; None if it has none."""
    source = build.job.recipe.source
    is_folder = source is not None and source.kind == "hf"
    return Windows.of(_config(source, runner)) if source is not None and is_folder else None


def _config(source: Source, runner: Steps) -> dict[str, object]:
    file = _hugging_face(source, runner).path / CONFIG
    return read_json(file.read_bytes(), CONFIG)


def signature(recipe: Recipe, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs that an ONNX or Hugging Face model itself declares."""
    return infos(exported_model(recipe, None, runner).inputs)


def _check_positions(recipe: Recipe, positions: int | None) -> None:
    """Refuse more tokens than the model's table of positions has rows."""
    largest = {name: axis.max for name, axis in recipe.axis_ranges().items()}
    mask = recipe.inputs.get(MASK) or recipe.inputs.get(IDS)
    if positions is None or mask is None:
        return
    axis, tokens = mask.shape[-1], size_of(mask.shape[-1], largest)
    if tokens > positions:
        raise UsageError(
            f"{axis} goes up to {tokens}, but the model has only {positions} positions",
            where=f"axes of {recipe.name}",
            hint=f"lower the max of {' and '.join(axes_of([axis]))}",
        )


def collect(build: Build, runner: Steps) -> None:
    """Samples for calibration and evaluation, spooled once. No sample may be used for both. From
    samples of a whole encoder-decoder, each part gets its inputs."""
    recipe, job = build.job.recipe, build.job
    if job.calibration is not None:
        build.calibration = job.calibration
    elif recipe.calibration_source is not None:
        build.calibration = samples_of(build, runner, "calibration")
    if recipe.eval is not None:
        build.evaluation = samples_of(build, runner, "evaluation")
    if build.calibration is not None and build.evaluation is not None:
        keep_apart(build, build.calibration, build.evaluation)
    if _is_whole(build.calibration, build.job.part):
        build.calibration = _divide(build, build.calibration, "calibration", runner)
    if _is_whole(build.evaluation, build.job.part):
        build.evaluation = _divide(build, build.evaluation, "evaluation", runner)
    check_finite(build, build.calibration, "calibration", runner)
    check_finite(build, build.evaluation, "evaluation", runner)
    samples = build.evaluation or build.calibration
    build.probe = samples or runner.do(Random(random=build.sizes), "random inputs")


def exported_model(settings: Recipe, code: Path | None, runner: Steps) -> ExportedGraph:
    """The exported graph of the recipe's model. Raises InputRefused if it names none."""
    source, objects = settings.source, runner.objects
    if source is None:
        raise InputRefused(
            "there is no model",
            where=settings.name,
            hint="give MODEL, or add `model:` to the recipe",
        )
    specs, axes = settings.describe(), settings.axis_ranges()
    label = f"export {settings.name}"
    where = source.place.path if source.place is not None else None
    if source.kind == "onnx" and where is not None:
        model = stage.stage_onnx(where, objects)
        graph = OnnxModel(
            _library(settings, "custom_ops", source.custom_ops),
            plugins=_library(settings, "plugins", source.plugins),
        )
        with located(str(where)):
            return runner.do(Export(model=_foreign(model), source=graph, specs=specs), label)
    if source.kind == "pt2" and where is not None:
        archive = stage.stage_pt2(where, objects)
        with located(str(where)):
            samples = compared(settings, runner)
            step = Export(
                model=_foreign(archive), source=TorchArchive(axes), specs=specs, samples=samples
            )
            return runner.do(step, label)
    if source.kind == "hf":
        return _export_hugging_face(settings, source, specs, runner)
    weights = None
    if source.weights is not None:
        weights = _foreign(stage.stage_weights(source.weights.path, objects))
    place = code if where is None else where.parent
    origin = settings.origin
    args: dict[str, Path] = {}
    for name, value in source.args.items():
        given = origin.is_given(("model", "args", name))
        args |= paths(name, value, origin.cwd if given else origin.base)
    step = Export(
        weights=weights,
        samples=compared(settings, runner),
        source=PythonModel(axes, source.factory, dict(source.args)),
        specs=specs,
        file=where,
        module=source.module,
        attribute=source.attribute,
        code=code,
        given_weights=None if source.weights is None else str(source.weights.path),
        **asdict(declared(settings, "model", place, args)),
    )
    return runner.do(step, label)


def _library(settings: Recipe, key: str, place: Place | None) -> OperatorLibrary | None:
    """The library with operators of the model that a key of the recipe names. Raises UnsafeFile
    unless the user trusts it."""
    if place is None:
        return None
    if not settings.origin.trusted:
        raise UnsafeFile(
            f"the library {place.path} is not opened: opening it runs its code",
            where=settings.origin.where(("model", key)),
            hint=f"if you know and trust its author, build with {OPTION}",
        )
    return OperatorLibrary.trust(place.path)


def _export_hugging_face(
    settings: Recipe, source: Source, specs: tuple[InputSpec, ...], runner: Steps
) -> ExportedGraph:
    """The exported graph. The export traces all axes of the model, so other ranges of them need no
    new export. The key contains only the axes with a single size, and the axes that the recipe
    gives to the inputs."""
    folder = _hugging_face(source, runner)
    adapter = None
    if source.adapter is not None:
        adapter = _foreign(stage.stage_adapter(source.adapter.path, runner.objects))
    used = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    axes = {
        name: AxisRange(**dict(axis))
        for name, axis in settings.axes.items()
        if axis.min == axis.max or name in used
    }
    where = source.hub if source.place is None else str(source.place.path)
    with located(str(where), str(folder.path)):
        model = HuggingFaceModel(
            axes, source.task, source.part, source.trusted, versions(_HUGGING_FACE)
        )
        return runner.do(
            Export(model=_foreign(folder), adapter=adapter, source=model, specs=specs),
            f"export {settings.name}",
        )


def _hugging_face(source: Source, runner: Steps) -> _Staged:
    """The model's folder, staged."""
    place = source.place
    path = place.path if place is not None else stage.download(str(source.hub), code=source.trusted)
    return stage.stage_folder(path, runner.objects, code=source.trusted)


def _foreign(staged: _Staged) -> Foreign:
    return Foreign(staged.path, staged.sha256)


def given_samples(build: Build, runner: Steps) -> Samples | None:
    """The calibration samples, or without these the evaluation samples, for stages before
    `collect`; None if the job has no samples."""
    recipe = build.job.recipe
    role: SampleRole = "calibration"
    samples = build.job.calibration
    if samples is None and recipe.calibration_source is not None:
        samples = samples_of(build, runner, role)
    elif samples is None and recipe.eval is not None:
        role = "evaluation"
        samples = samples_of(build, runner, role)
    return _divide(build, samples, role, runner) if _is_whole(samples, build.job.part) else samples


def samples_of(
    build: Build, runner: Steps, role: SampleRole, assets: Foreign | None = None
) -> CollectedSamples:
    """The samples of the recipe's source or task, spooled. `assets`: the files of tokenizer and
    processor; None: those of the model's source."""
    recipe = build.job.recipe
    source = recipe.samples(role)
    assert source is not None
    return collected(
        recipe,
        source,
        role,
        recipe.describe(build.inputs),
        runner,
        assets or _assets(build.source),
        tuple(map(InputSpec, _whole(build, runner))) if build.job.part else (),
    )


def _whole(build: Build, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs of the whole encoder-decoder."""
    ids = TensorInfo(IDS, "int64", (build.batch_axis or "batch", "sequence"))
    if build.job.part == "encoder":
        return whole(build.inputs, ids)
    decoder = {info.name: info for info in build.inputs}
    return whole(infos(_encoder(build, runner).inputs), decoder.get(IDS, ids))


def _encoder(build: Build, runner: Steps) -> Graph:
    """The exported graph of the encoder. The store has it if both parts are built."""
    if build.encoder is None:
        recipe = build.job.recipe.with_overrides(["model.part=encoder", "name=encoder"])
        build.encoder = exported_model(recipe, build.job.code, runner)
    return build.encoder


def _is_whole(samples: Samples | None, part: str | None) -> TypeGuard[Samples]:
    """Whether samples are of a whole encoder-decoder. A rehearsal has no samples, and assumes that
    they are."""
    if samples is None or part is None:
        return False
    return samples.planned or (isinstance(samples, CollectedSamples) and samples.whole)


def _divide(build: Build, samples: Samples, role: str, runner: Steps) -> CollectedSamples:
    """The samples of one part. The facts about data and task are those of the whole samples."""
    recipe, decodes = build.job.recipe, build.job.part == "decoder"
    step = Divide(
        samples=samples,
        encoder=_encoder(build, runner) if decodes else None,
        specs=recipe.describe(build.inputs),
        optional=tuple(recipe.optional_axes()),
        memory=runner.limits.memory_bytes // 4,
    )
    label = f"encode {role} samples" if decodes else f"take the encoder's {role} samples"
    folder = runner.do(step, label).folder
    return CollectedSamples.of(replace(folder, meta=samples.meta))  # type: ignore[type-var]


def _assets(source: Graph) -> Foreign | None:
    """The model's tokenizer and processor files, if it has any."""
    files = {name: sha for name, sha in source.files.items() if name.startswith(f"{ASSETS}/")}
    return Foreign(source.path / ASSETS, files=files) if files else None


def data_of(build: Build) -> dict[str, dict[str, object]]:
    """The samples that were used for calibration and for evaluation: their source, their number,
    and their digest, which does not depend on paths and batches."""
    recipe, in_memory = build.job.recipe, build.job.calibration is not None
    calibration = None if in_memory else recipe.samples("calibration")
    return {
        role: {
            "source": "memory" if source is None else str(source.place),
            "args": {} if source is None else source.args,
            "samples": samples.info.samples,
            "digest": samples.info.digest,
        }
        for role, samples, source in (
            ("calibration", build.calibration, calibration),
            ("evaluation", build.evaluation, recipe.samples("evaluation")),
        )
        if samples is not None
    }
