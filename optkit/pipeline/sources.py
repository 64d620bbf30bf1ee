"""What the user brings: the model as one graph, and samples, spooled once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from optkit import intake as stage
from optkit import places
from optkit.data.parts import whole
from optkit.data.sequences import IDS, MASK
from optkit.data.spool import Spool, overlap
from optkit.errors import InputRefused, UsageError, located
from optkit.execute.runner import Steps, versions
from optkit.execute.step import Foreign
from optkit.pipeline.job import Build
from optkit.places import Place
from optkit.recipe import InputSpec, Recipe, Source, axes_from_json, inputs_from_json
from optkit.steps import ASSETS
from optkit.steps.adopt import Adopt
from optkit.steps.check_data import CheckData
from optkit.steps.collect import Collect, Collected, Samples
from optkit.steps.divide import Divide
from optkit.steps.export import (
    Export,
    Exported,
    HuggingFaceModel,
    OnnxModel,
    PythonModel,
    TorchArchive,
)
from optkit.steps.graph import Graph
from optkit.steps.random import Random
from optkit.tensors import AxisRange, TensorInfo, axes_of, size_of

_HUGGING_FACE = ("transformers", "optimum", "peft")


def export(build: Build, runner: Steps) -> None:
    """source → graph: ONNX, opset ≥ 21, compared with the model it came from."""
    job = build.job
    if job.graph is not None:
        graph: Graph = runner.do(Adopt(model=job.graph), "adopt the exported graph")
    else:
        graph = _export(job.recipe, job.code, runner)
    build.source = graph
    log = graph.log
    if log.get("specs"):  # the model says itself what it takes
        own = inputs_from_json(log["specs"]), axes_from_json(log["axes"])
        build.job = replace(job, recipe=job.recipe.with_inputs(*own))
        job = build.job
        _check_positions(job.recipe, log["positions"])
    declared = [(name, part.dtype, part.shape) for name, part in job.recipe.inputs.items()]
    build.inputs = infos(graph.inputs or declared)
    build.outputs = infos(graph.outputs)


def parts(recipe: Recipe, runner: Steps) -> tuple[str, ...]:
    """The graphs that the model consists of: encoder and decoder; none where it is one, or where
    the recipe names one of them."""
    source = recipe.source
    if source is None or source.kind != "hf" or source.part is not None:
        return ()
    config = json.loads((_hugging_face(source, runner).path / "config.json").read_bytes())
    return ("encoder", "decoder") if config.get("is_encoder_decoder") else ()


def signature(recipe: Recipe, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs of an ONNX or Hugging Face model as it has them itself, where the recipe declares
    none."""
    return infos(_export(recipe, None, runner).inputs)


def _check_positions(recipe: Recipe, positions: int | None) -> None:
    """Tokens behind the last learned position would be looked up where there is nothing."""
    largest = {name: axis.max for name, axis in recipe.axis_ranges().items()}
    mask = recipe.inputs.get(MASK) or recipe.inputs.get(IDS)
    if positions is None or mask is None:
        return
    axes, tokens = mask.shape[-1], size_of(mask.shape[-1], largest)
    if tokens > positions:
        raise UsageError(
            f"{axes} goes up to {tokens}, but the model has only {positions} positions",
            where=f"axes of {recipe.name}",
            hint=f"lower the max of {' and '.join(axes_of([axes]))}",
        )


def collect(build: Build, runner: Steps) -> None:
    """Samples for calibration and evaluation, spooled once; a sample must not serve both. Of those
    of a whole encoder-decoder each part gets what it takes."""
    recipe, job = build.job.recipe, build.job
    if job.calibration is not None:
        build.calibration = job.calibration
    elif recipe.calibration_source is not None:
        build.calibration = samples_of(build, runner, "calibration")
    if recipe.eval is not None:
        build.evaluation = samples_of(build, runner, "evaluation")
    if build.calibration is not None and build.evaluation is not None:
        _keep_apart(build, build.calibration, build.evaluation)
    if _is_whole(build.calibration, build.job.part):
        build.calibration = _divide(build, build.calibration, "calibration", runner)
    if _is_whole(build.evaluation, build.job.part):
        build.evaluation = _divide(build, build.evaluation, "evaluation", runner)
    given = build.evaluation or build.calibration
    build.probe = given or runner.do(Random(random=build.sizes), "random inputs")


def check_data(build: Build, runner: Steps) -> None:
    """Whether the calibration data is what the model expects, before anything is learned of it."""
    if build.calibration is None:
        return
    step = CheckData(
        samples=build.calibration,
        graph=build.source,
        evaluation=build.evaluation,
        specs=build.job.recipe.describe(build.inputs),
    )
    build.data_check = runner.do(step, "check calibration data")


def _export(settings: Recipe, code: Path | None, runner: Steps) -> Exported:
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
        with located(str(where)):
            return runner.do(Export(model=_foreign(model), source=OnnxModel(), specs=specs), label)
    if source.kind == "pt2" and where is not None:
        archive = stage.stage_pt2(where, objects)
        with located(str(where)):
            return runner.do(
                Export(model=_foreign(archive), source=TorchArchive(axes), specs=specs), label
            )
    if source.kind == "hf":
        return _export_hugging_face(settings, source, specs, runner)
    weights = None
    if source.weights is not None:
        weights = _foreign(stage.stage_weights(source.weights.path, objects))
    place = code if where is None else where.parent
    step = Export(
        weights=weights,
        source=PythonModel(axes, settings.to_json()["model"]["factory"], dict(source.args)),
        specs=specs,
        file=where,
        module=source.module,
        attribute=source.attribute,
        code=code,
        given_weights=None if source.weights is None else str(source.weights.path),
        roots=() if place is None else (str(places.project_root(place)),),
    )
    return runner.do(step, label)


def _export_hugging_face(
    settings: Recipe, source: Source, specs: tuple[InputSpec, ...], runner: Steps
) -> Exported:
    """The model's own axes are traced, so that other profiles do not export it anew, but for an
    axis of one size and those that the recipe gives to its inputs."""
    folder = _hugging_face(source, runner)
    adapter = None
    if source.adapter is not None:
        adapter = _foreign(stage.stage_adapter(source.adapter.path, runner.objects))
    used = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    axes = {
        name: AxisRange(axis.min, axis.opt, axis.max)
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


def _hugging_face(source: Source, runner: Steps) -> Any:
    """The model's folder, staged."""
    place = source.place
    path = place.path if place is not None else stage.download(str(source.hub), code=source.trusted)
    return stage.stage_folder(path, runner.objects, code=source.trusted)


def _foreign(staged: Any) -> Foreign:
    return Foreign(staged.path, staged.sha256)


def given_samples(build: Build, runner: Steps) -> Samples | None:
    """Those for calibration, else those of the evaluation, before either is needed; None: none."""
    recipe, role = build.job.recipe, "calibration"
    samples = build.job.calibration
    if samples is None and recipe.calibration_source is not None:
        samples = samples_of(build, runner, role)
    elif samples is None and recipe.eval is not None:
        role = "evaluation"
        samples = samples_of(build, runner, role)
    return _divide(build, samples, role, runner) if _is_whole(samples, build.job.part) else samples


def samples_of(build: Build, runner: Steps, role: str) -> Collected:
    """Those of the recipe's "calibration" source or "evaluation" task, spooled."""
    recipe = build.job.recipe
    limit = None
    if role == "calibration":
        assert recipe.calibration is not None
        place, args, section = recipe.calibration_source, recipe.calibration.args, "calibration"
        limit = recipe.calibration.samples
    else:
        assert recipe.eval is not None
        place, args, section = recipe.eval_task, recipe.eval.args, "eval"
    assert place is not None
    model, assets = _assets(build.source)
    step = Collect(
        limit=limit,
        function=place.attribute or "samples",
        assets=assets,
        whole=tuple(map(InputSpec, _whole(build, runner))) if build.job.part else (),
        what=str(place),
        args=dict(args),
        specs=recipe.describe(build.inputs),
        labelled=role == "evaluation",
        optional=tuple(recipe.optional_axes()),
        path=place.path,
        where=_named_data(recipe, section, place),
        memory=runner.limits.memory_bytes // 4,
        folders=recipe.argument_folders(section),
        model=model,
        roots=tuple(roots_of(recipe, role)),
    )
    return runner.do(step, f"collect {role} samples")


def _named_data(recipe: Recipe, section: str, place: Place) -> str:
    """Where an error in samples is: in what a reader of optkit's reads, or in the user's code."""
    settings = recipe.calibration if section == "calibration" else recipe.eval
    named = settings.args.get("path") if settings is not None else None
    if place.root != "content" or not isinstance(named, str):
        return str(place.path)
    return str(recipe.argument_folders(section)["path"] / named)


def roots_of(recipe: Recipe, role: str) -> list[str]:
    """To which folders the paths are told relative that the "calibration" source or the
    "evaluation" task reads: its project, then folders that its args name."""
    place = recipe.calibration_source if role == "calibration" else recipe.eval_task
    section = recipe.calibration if role == "calibration" else recipe.eval
    assert place is not None and section is not None
    folders = recipe.argument_folders("calibration" if role == "calibration" else "eval")
    named = [folders[name] / value for name, value in section.args.items()
             if name in folders and isinstance(value, str)]  # fmt: skip
    found = [places.project_root(place.path.parent), *(path for path in named if _is_folder(path))]
    return list(dict.fromkeys(os.path.abspath(path) for path in found))  # noqa: PTH100


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # any text that is no path
        return False


def _whole(build: Build, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs of the whole encoder-decoder."""
    ids = TensorInfo(IDS, "int64", (build.batch_axis or "batch", "sequence"))
    if build.job.part == "encoder":
        return whole(build.inputs, ids)
    own = {info.name: info for info in build.inputs}
    return whole(infos(_encoder(build, runner).inputs), own.get(IDS, ids))


def _encoder(build: Build, runner: Steps) -> Graph:
    """The encoder's graph as exported; who builds both parts has it in the store."""
    if build.encoder is None:
        recipe = build.job.recipe.with_overrides(["model.part=encoder", "name=encoder"])
        build.encoder = _export(recipe, build.job.code, runner)
    return build.encoder


def _is_whole(samples: Samples | None, part: str | None) -> TypeGuard[Samples]:
    """Whether samples are of a whole encoder-decoder (in a rehearsal, which has none: probably)."""
    if samples is None or part is None:
        return False
    return samples.planned or (isinstance(samples, Collected) and samples.whole)


def _divide(build: Build, samples: Samples, role: str, runner: Steps) -> Collected:
    """The part's own samples; what is told of data and task is that of the whole ones."""
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
    return Collected.of(replace(folder, meta=samples.meta))  # type: ignore[type-var]


def _assets(source: Graph) -> tuple[Path | None, dict[str, str]]:
    """The folder of a model's tokenizer and processor files, if it has any, and their digests."""
    found = {name: sha for name, sha in source.files.items() if name.startswith(f"{ASSETS}/")}
    return (source.path / ASSETS if found else None), found


def data_of(build: Build) -> dict[str, Any]:
    """The samples that were really used, for calibration and for evaluation: where from, how many,
    and their digest, which knows neither paths nor batches."""
    recipe, job = build.job.recipe, build.job
    sources = {
        "calibration": (recipe.calibration_source, recipe.calibration),
        "evaluation": (recipe.eval_task, recipe.eval),
    }
    found = {}
    for role, samples in (("calibration", build.calibration), ("evaluation", build.evaluation)):
        if samples is None:
            continue
        place, section = sources[role]
        in_memory = role == "calibration" and job.calibration is not None
        found[role] = {
            "source": "memory" if in_memory or section is None else str(place),
            "args": {} if in_memory or section is None else section.args,
            "samples": samples.info.samples,
            "digest": samples.info.digest,
        }
    return found


def _keep_apart(build: Build, calibration: Samples, evaluation: Samples) -> None:
    if not (calibration.files and evaluation.files):  # in a rehearsal
        return
    shared = overlap(Spool(calibration.path), Spool(evaluation.path))
    if shared:
        first = shared[0]
        raise InputRefused(
            f"{len(shared)} calibration samples are also evaluation samples; the first is "
            f"calibration sample {first[0]}, evaluation sample {first[1]}",
            where=build.job.recipe.name,
            hint="calibrate on data that the task does not score, or the accuracy is not valid",
        )


def infos(rows: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in rows)
