"""The evaluation samples that `finish` scores, and the task that scores them.

An artifact contains its samples only if its build was asked to embed them. Otherwise the store has
them, on the machine of the build and on those with the same remote, or optkit itself ships them.
Nothing that a manifest names is opened as a path or run as code, except tasks that optkit ships.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from optkit.facts.errors import InputRefused
from optkit.ground import intake as stage
from optkit.ground import shipped
from optkit.ground.artifact import MODEL, SAMPLES, Artifact
from optkit.ground.data.spool import Spool
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.step import Folder, Foreign, StepInput
from optkit.ground.places import Place
from optkit.ground.recipe import Recipe
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.sources import samples_of
from optkit.road.steps.collect import Collect, CollectedSamples
from optkit.road.steps.divide import Divide
from optkit.road.steps.graph import RandomInputs
from optkit.road.steps.random import Random

_CONTENT = "content:"
_KEY = re.compile("[0-9a-f]{64}")
_SCORED_BY = ("metric", "scoring", "agreement")  # facts about a task, kept beside its samples


@dataclass(frozen=True)
class GivenTask:
    """The task that a user gives, with the path that it reads and its other args
    ("eval.args.KEY=VALUE")."""

    place: Place
    data: Path | None = None
    overrides: tuple[str, ...] = ()

    def applied(self, recipe: Recipe) -> Recipe:
        path = [] if self.data is None else [f"eval.args.path={json.dumps(str(self.data))}"]
        return recipe.with_overrides([f"eval.task={self.place.path}", *path, *self.overrides])


def recorded_task(artifact: Artifact, recipe: Recipe) -> Recipe:
    """The recipe with the task that scored the artifact, if optkit ships that task. It is found by
    its name beneath the files of optkit: a path in an artifact of unknown origin could lead to code
    of unknown origin. Its args are those of the artifact if none of them can be a path.

    Raises InputRefused."""
    source, args = _source(artifact), _args(artifact)
    name = PurePosixPath(source.removeprefix(_CONTENT))
    file = shipped.root() / name
    plain = source == f"{_CONTENT}{name}" and not name.is_absolute() and ".." not in name.parts
    if not plain or not file.is_file() or shipped.relative(file.resolve()) != str(name):
        raise InputRefused(
            f"it was scored by code that it does not contain: {source or 'a function in memory'}",
            where=str(artifact.path),
            hint="give that task, with its samples: --eval FILE.py",
        )
    given = json.dumps(args if _needs_no_file(args) else {})
    return recipe.with_overrides([f"eval.task={file}", f"eval.args={given}"])


def recorded_samples(artifact: Artifact, build: Build, runner: Runner) -> CollectedSamples:
    """The samples that scored the artifact: those in it, or in the store, or those of a task that
    needs no file of the user. Raises InputRefused if they are not on this machine."""
    if SAMPLES in artifact.manifest.files:
        staged = stage.stage_weights(artifact.path / SAMPLES, runner.objects)
        file = Foreign(staged.path, staged.sha256, files={SAMPLES: staged.sha256})
        return _collected(Spool(staged.path).metadata, file)
    about = artifact.manifest.data.get("evaluation", {})
    stored, scored_by = stored_samples(artifact, runner), about.get("scored_by")
    if stored is not None and isinstance(scored_by, dict):
        return _collected(scored_by, stored)
    if _needs_no_file(_args(artifact)) and not _is_part(artifact):
        found = samples_of(build, runner, "evaluation")
        if found.info.digest == about.get("digest"):
            return found
    raise InputRefused(
        "its evaluation samples are neither in it nor in the store of this machine",
        where=str(artifact.path),
        hint=f"give the task with its data: {_options(artifact)}; an artifact that is built with "
        "--embed-eval SIZE contains its samples",
    )


def stored_samples(artifact: Artifact, runner: Runner) -> Folder | None:
    """The artifact's evaluation samples, if the store has them. The manifest has the key of the
    step that spooled them."""
    key = artifact.manifest.data.get("evaluation", {}).get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return None
    entry = runner.store.get(key)
    return entry if entry is not None and entry.step in (Collect.name, Divide.name) else None


def samples_to_run(artifact: Artifact, random: RandomInputs, runner: Runner) -> StepInput:
    """The samples in the artifact, else those in the store, else random ones."""
    if SAMPLES in artifact.manifest.files:
        samples = stage.stage_weights(artifact.path / SAMPLES, runner.objects)
        return Foreign(samples.path, samples.sha256)
    return stored_samples(artifact, runner) or runner.do(Random(random=random), "random inputs")


def record_of(samples: CollectedSamples) -> dict[str, object]:
    """The entries of a manifest by which `stored_samples` and the scoring find samples again."""
    scored_by = {name: getattr(samples, name) for name in _SCORED_BY}
    return {"key": getattr(samples.folder, "key", None), "scored_by": scored_by}


def assets_of(artifact: Artifact) -> Foreign | None:
    """Tokenizer, processor and configuration of the model, for a task that reads text or pictures;
    None if the artifact has no such files."""
    manifest = artifact.manifest
    engines = {manifest.engine.file} if manifest.engine else set()
    names = [n for n in manifest.serving if not n.startswith(MODEL) and n not in engines]
    files = {name: manifest.files[name].sha256 for name in names}
    return Foreign(artifact.path, files=files) if files else None


def _collected(scored_by: Mapping[str, object], folder: Folder) -> CollectedSamples:
    """Samples, with the facts about the task that scores them."""
    meta = {key: scored_by[key] for key in _SCORED_BY if key in scored_by}
    return CollectedSamples.of(Foreign(folder.path, folder.digest, meta, folder.files))


def _source(artifact: Artifact) -> str:
    return str(artifact.manifest.data.get("evaluation", {}).get("source", ""))


def _args(artifact: Artifact) -> dict[str, object]:
    args = artifact.manifest.data.get("evaluation", {}).get("args")
    return args if isinstance(args, dict) else {}


def _needs_no_file(args: Mapping[str, object]) -> bool:
    """Whether no arg can be a path."""
    return all(value is None or isinstance(value, bool | int | float) for value in args.values())


def _is_part(artifact: Artifact) -> bool:
    """Whether it is one graph of an encoder-decoder, whose samples are made by the other graph."""
    model = artifact.manifest.recipe.get("model")
    return isinstance(model, dict) and model.get("part") is not None


def _options(artifact: Artifact) -> str:
    """The options of `finish` for the task that scored the artifact, without the paths of the host
    that built it."""
    options = [f"--eval {PurePosixPath(_source(artifact)).stem}"]
    for name, value in _args(artifact).items():
        data = name == "path"
        options.append(
            "--eval-data PATH" if data else f"--set eval.args.{name}={json.dumps(value)}"
        )
    return " ".join(options)
