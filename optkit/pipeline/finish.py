"""What is pending in an artifact, done where its device is: compiled, scored, timed, judged again.

    artifact ─restore→ Build ─compile_, score, time→ figures measured on the device ─→ artifact

Graphs, plan and samples are the artifact's own; nothing is exported, calibrated or quantized anew,
so it stays the same build (`manifest.digest`). Its recipe is a record: it says sizes, gates and how
long to time, and none of its files is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from optkit import codec, places, shipped
from optkit import intake as stage
from optkit.artifact import MANIFEST, MODEL, SAMPLES, Artifact
from optkit.assignment import Assignment
from optkit.data.spool import Spool
from optkit.devices import Target
from optkit.errors import InputRefused, IntegrityError, RecipeError, UsageError
from optkit.evidence import Evidence
from optkit.execute.reads import Record
from optkit.execute.runner import Steps
from optkit.execute.step import Foreign
from optkit.measurement import Fidelity
from optkit.pipeline.accuracy import score
from optkit.pipeline.engines import compile_
from optkit.pipeline.job import Build, Job, Role
from optkit.pipeline.latency import time
from optkit.pipeline.peak_memory import weigh
from optkit.pipeline.sources import samples_of
from optkit.places import Place
from optkit.precisions import Precision, precision
from optkit.recipe import Recipe
from optkit.report.contract import report_of, result_of
from optkit.steps.collect import Collected
from optkit.steps.compare import ComparedOutputs
from optkit.steps.graph import Graph
from optkit.steps.quantize import Quantized
from optkit.steps.random import Random
from optkit.store import digest_file

_RECIPE = ("name", "inputs", "axes", "bench", "gates", "compiler")
_CONTENT = "content:"


def finish(
    artifact: Artifact,
    target: Target,
    backend: str,
    pending: tuple[str, ...],
    runner: Steps,
    task: Place | None,
    *,
    strict: bool,
) -> Build:
    """Compile for the device of this machine, and measure there. `task`: scores instead of the one
    that the artifact was built with. `pending`: backends that stay so.

    Raises what the steps raise, and InputRefused where the artifact carries no samples to score.
    """
    build = _restore(artifact, target, backend, pending, runner, task, strict)
    compile_(build, runner)
    if build.evaluation is not None:
        graphs: dict[Role, Graph] = {"baseline": build.baseline, "candidate": build.graph}
        for role, graph in graphs.items():
            build.scores[role] = score(build, runner, role, graph, MODEL, Evidence.MEASURED)
    time(build, runner)
    weigh(build, runner)
    return build


def _restore(
    artifact: Artifact,
    target: Target,
    backend: str,
    pending: tuple[str, ...],
    runner: Steps,
    task: Place | None,
    strict: bool,
) -> Build:
    manifest, recipe = artifact.manifest, recorded(artifact)
    result = result_of(artifact)
    scored = result.accuracy is not None
    if scored or task is not None:
        place = task.path if task is not None else _task_of(artifact)
        recipe = recipe.with_overrides([f"eval.task={place}"])
    build = Build(
        Job(recipe, target, precision(manifest.precision), strict=strict),
        backend,
        pending,
        baseline_of(artifact),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        measured=True,
    )
    rows = report_of(artifact).quantization
    nodes = {row.node: row.precision for row in rows}
    if result.fidelity is not None:
        fidelity = codec.from_json(Fidelity, result.fidelity.to_json())
        build.fidelities["candidate"] = ComparedOutputs(fidelity=fidelity)
    build.source = Graph()  # nothing is known of how it was exported
    build.graph = Graph(folder=staged_graph(artifact.path / MODEL, runner))
    build.baseline = Graph(folder=staged_graph(artifact.path / "baseline" / MODEL, runner))
    build.quantized = Quantized(assignment=Assignment(nodes))
    if task is not None:
        build.evaluation = samples_of(build, runner, "evaluation")
    elif scored:
        build.evaluation = _embedded(artifact, recipe, runner)
    build.probe = build.evaluation or runner.do(Random(random=build.sizes), "random inputs")
    return build


def recorded(artifact: Artifact) -> Recipe:
    """What an artifact's recipe says of sizes, gates and timing; none of its files is opened.
    Raises IntegrityError where it is no recipe."""
    found = artifact.manifest.recipe
    try:
        return Recipe.from_dict({name: found[name] for name in _RECIPE if name in found})
    except RecipeError as error:
        raise _no_recipe(error.message, artifact.path / MANIFEST) from error


def whole_recipe(record: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The recipe that a manifest or a report holds, with what it leaves to the defaults; none of
    its files is looked for. Raises IntegrityError, which names the key, where it is no recipe."""
    told = dict(record)
    if isinstance(model := told.get("model"), dict):  # a record may say it, a recipe may not
        told["model"] = {key: model[key] for key in model if key != "trust_remote_code"}
    try:
        return Recipe.model_validate(told).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise _no_recipe(f"{key}: {first['msg']}", file) from error


def baseline_of(artifact: Artifact) -> Precision:
    """The precision that an artifact is compared with. Raises IntegrityError where it says none."""
    baseline = result_of(artifact).baseline
    if baseline is None:
        raise IntegrityError(
            "result.baseline: null, but an artifact of one graph has a baseline",
            where=str(artifact.path / MANIFEST),
        )
    return precision(baseline.precision)


def _no_recipe(reason: str, file: Path) -> IntegrityError:
    return IntegrityError(f"recipe: {reason}", where=str(file))


def _task_of(artifact: Artifact) -> Path:
    """The file of the task that scored the artifact, where it is one of optkit's own: by its name
    alone, since a path that a stranger's artifact names could lead to the stranger's code."""
    source = str(artifact.manifest.data.get("evaluation", {}).get("source", ""))
    name = PurePosixPath(source.removeprefix(_CONTENT)).stem
    if source == f"{_CONTENT}eval/{name}.py":
        with suppress(UsageError):
            place = places.find_task(name, shipped.root())
            if place.root == "content":
                return place.path
    raise InputRefused(
        f"it was scored by code that it does not contain: {source or 'a function in memory'}",
        where=str(artifact.path),
        hint="give that task, with its samples: --eval FILE.py",
    )


def _embedded(artifact: Artifact, recipe: Recipe, runner: Steps) -> Collected:
    file = artifact.path / SAMPLES
    if SAMPLES not in artifact.manifest.files:
        raise InputRefused(
            "it contains no evaluation samples",
            where=str(artifact.path),
            hint="give the task, with its samples: --eval FILE.py (or build it again with a larger "
            "--embed-eval)",
        )
    samples = stage.stage_weights(file, runner.objects)
    told: Mapping[str, Any] = Spool(samples.path).metadata
    place = recipe.eval_task
    assert place is not None
    code = Record({"content": {str(place): digest_file(place.path)}}).to_json()
    meta = {"metric": told["metric"], "scoring": told["scoring"], "reads": code,
            "agreement": told.get("agreement", False)}  # fmt: skip
    return Collected.of(Foreign(samples.path, samples.sha256, meta, {SAMPLES: samples.sha256}))


def staged_graph(file: Path, runner: Steps) -> Foreign:
    """An artifact's graph, through the door for foreign files; the folder has it as model.onnx."""
    found = stage.stage_onnx(file, runner.objects)
    names = {name: sha256 for name, (sha256, _) in found.files.items()}
    return Foreign(found.path.parent, found.sha256, files=names)
