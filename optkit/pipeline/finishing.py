"""What is pending in an artifact, done where its device is: compiled, scored, timed, judged again.

    artifact ─restore→ Build ─compile_, score, time→ figures measured on the device ─→ artifact

Graphs, plan and samples are the artifact's own; nothing is exported, calibrated or quantized anew,
so it stays the same build (`manifest.digest`). Its recipe is a record: it says sizes, gates and how
long to time, and none of its files is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from optkit import content, stage
from optkit.artifact import MODEL, SAMPLES, Artifact
from optkit.assignment import Assignment
from optkit.content import Place
from optkit.data.spool import Spool
from optkit.errors import InputRefused, UsageError
from optkit.execute.runner import Made, Steps
from optkit.pipeline.job import Build, Foreign, Job
from optkit.pipeline.judging import compile_, score, time, weigh
from optkit.pipeline.sources import samples_of
from optkit.recipe import Recipe
from optkit.runtime import Evidence
from optkit.steps import STEPS
from optkit.store import digest_file
from optkit.target import Target

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
    made = _restore(artifact, target, backend, pending, runner, task, strict)
    compile_(made, runner)
    if "evaluation" in made.entries:
        for role, graph in (("baseline", "baseline"), ("candidate", "graph")):
            found = score(made, runner, role, made.entries[graph], MODEL, Evidence.MEASURED)
            made.entries[f"{role}_score"] = found
    time(made, runner)
    weigh(made, runner)
    return made


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
    scored = manifest.result["accuracy"] is not None
    if scored or task is not None:
        place = task.path if task is not None else _task_of(artifact)
        recipe = recipe.with_overrides([f"eval.task={place}"])
    made = Build(
        Job(recipe, target, manifest.precision, strict=strict),
        backend,
        pending,
        manifest.result["baseline"]["precision"],
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        measured=True,
    )
    report = read_report(artifact)
    nodes = {row["node"]: row["precision"] for row in report["quantization"]}
    made.entries = {
        "graph": staged_graph(artifact.path / MODEL, runner),
        "baseline": staged_graph(artifact.path / "baseline" / MODEL, runner),
        "quantized": Foreign(meta={"assignment": Assignment(nodes).to_json()}),
        "candidate_fidelity": Foreign(meta={"fidelity": manifest.result["fidelity"]}),
        "source": Foreign(),
    }
    if task is not None:
        made.entries["evaluation"] = samples_of(made, runner, "evaluation")
    elif scored:
        made.entries["evaluation"] = _embedded(artifact, recipe, runner)
    made.entries["probe"] = made.entries.get("evaluation") or runner.step(
        STEPS["random"].kind, "random inputs", {}, made.sizes
    )
    return made


def recorded(artifact: Artifact) -> Recipe:
    """What an artifact's recipe says of sizes, gates and timing; none of its files is opened."""
    found = artifact.manifest.recipe
    return Recipe.from_dict({name: found[name] for name in _RECIPE if name in found})


def read_report(artifact: Artifact) -> dict[str, Any]:
    """Its report document, which `artifact.verify` has compared with the manifest."""
    found: dict[str, Any] = json.loads((artifact.path / "report.json").read_bytes())
    return found


def _task_of(artifact: Artifact) -> Path:
    """The file of the task that scored the artifact, where it is one of optkit's own: by its name
    alone, since a path that a stranger's artifact names could lead to the stranger's code."""
    source = str(artifact.manifest.data.get("evaluation", {}).get("source", ""))
    name = PurePosixPath(source.removeprefix(_CONTENT)).stem
    if source == f"{_CONTENT}eval/{name}.py":
        with suppress(UsageError):
            place = content.find_task(name, content.root())
            if place.root == "content":
                return place.path
    raise InputRefused(
        f"it was scored by code that it does not carry: {source or 'a function in memory'}",
        where=str(artifact.path),
        hint="give that task, with its samples: --eval FILE.py",
    )


def _embedded(artifact: Artifact, recipe: Recipe, runner: Steps) -> Made:
    file = artifact.path / SAMPLES
    if SAMPLES not in artifact.manifest.files:
        raise InputRefused(
            "it carries no evaluation samples",
            where=str(artifact.path),
            hint="give the task, with its samples: --eval FILE.py (or build it again with a larger "
            "--embed-eval)",
        )
    samples = stage.stage_weights(file, runner.objects)
    told: Mapping[str, Any] = Spool(samples.path).metadata
    place = recipe.eval_task
    assert place is not None
    code = {str(place): digest_file(place.path)}
    meta = {"metric": told["metric"], "scoring": told["scoring"], "reads": {"content": code},
            "agreement": told.get("agreement", False)}  # fmt: skip
    return Foreign(samples.path, samples.sha256, meta, {SAMPLES: samples.sha256})


def staged_graph(file: Path, runner: Steps) -> Made:
    """An artifact's graph, through the door for foreign files; the folder has it as model.onnx."""
    found = stage.stage_onnx(file, runner.objects)
    names = {name: sha256 for name, (sha256, _) in found.files.items()}
    return Foreign(found.path.parent, found.sha256, files=names)
