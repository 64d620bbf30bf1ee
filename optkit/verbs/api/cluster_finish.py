"""Finish an artifact on a node of the cluster that has its device."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from optkit.facts import codec
from optkit.facts.documents.result import Result
from optkit.facts.errors import OptkitError
from optkit.ground import artifact
from optkit.ground.artifact import Artifact
from optkit.ground.devices import available_memory, device_names
from optkit.ground.execute.cluster import Cluster
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.task import TaskLimits
from optkit.ground.execute.transfer import Ground, RemoteCall
from optkit.show.report.contract import result_of
from optkit.verbs.api._finish import complete
from optkit.verbs.api.artifacts import load


def completed(
    build: Callable[[], Artifact], target: str, runner: Runner, *, strict: bool = False
) -> Artifact:
    """The artifact that `build` returns. If it is pending and a node of the runner's cluster has
    the device, this node finishes it. If no node has the device, a note says so at once, because
    Ray would wait forever."""
    cluster = runner.cluster
    if cluster is None:
        return build()
    names = dict.fromkeys(map(cluster.label, device_names(target)))
    accelerators = cluster.accelerators()
    node = next((name for name in names if name in accelerators), None)
    if node is None and names:
        counts = [f"{count} × {name}" for name, count in sorted(accelerators.items())]
        there = ", ".join(counts) or "none"
        runner.listener.note(
            f"no node of the cluster has the accelerator {' or '.join(names)} (there: {there}): "
            f"what needs a device of {target} stays pending"
        )
    built = build()
    return built if node is None else _finished(built, node, cluster, runner, strict)


@dataclass(frozen=True)
class _Task:
    """The work of a node, on a copy of the artifact. Messages name the path `shown`."""

    artifact: str
    shown: str
    limits: TaskLimits
    strict: bool


@dataclass(frozen=True)
class _Done:
    """The answer of the node."""

    result: Result
    notes: tuple[str, ...]
    seconds: float


def _finished(
    built: Artifact, node: str, cluster: Cluster, runner: Runner, strict: bool
) -> Artifact:
    """The artifact, finished on a node that has the accelerator `node`. If that fails, it stays
    pending, and a note says why."""
    if not result_of(built).pending:
        return built
    name = built.path.name
    label = f"finish {name} on a node with {node}"
    runner.listener.start("finish", label)
    try:
        with runner.store.scratch() as folder:
            sent, out = folder / "sent", folder / "finished"
            shutil.copytree(built.path, sent / name)
            out.mkdir()
            copy = str(sent / name)
            body = codec.to_json(_Task(copy, str(built.path), runner.limits, strict))
            argument = RemoteCall(body, (copy,), str(out), str(runner.store.root))
            answer = cluster.call(
                finish_here, argument, device=node, heard=runner.listener.progress
            )
            done = codec.from_json(_Done, answer)
            copied = load(out / name)
            files = {file: copied.path / file for file in copied.manifest.files}
            manifest = replace(copied.manifest, result=done.result.to_json())
            finished = artifact.write(built.path.parent, manifest, files)
    except OptkitError as error:
        runner.listener.failed("finish", label)
        runner.listener.note(f"{label}: {error.line}")
        return built
    runner.listener.done("finish", label, False, done.seconds)
    for note in done.notes:
        runner.listener.note(note)
    return finished


def finish_here(argument: RemoteCall, here: Ground) -> object:
    """Runs on the node: `finish` of a copy of the artifact, with the store of the node."""
    task = codec.from_json(_Task, argument.body)
    sent = Path(here.place(task.artifact))
    place = here.out / sent.name
    shutil.copytree(sent, place)
    memory = min(task.limits.memory_bytes, available_memory())
    limits = replace(task.limits, memory_bytes=memory)
    heard = _Heard(here)
    finished = complete(
        place, Runner(here.store, limits, heard), strict=task.strict, final=Path(task.shown)
    )
    done = _Done(Result.from_json(finished.result), tuple(heard.notes), heard.seconds)
    return codec.to_json(done)


class _Heard:
    """A listener that collects notes, and forwards progress to another listener."""

    def __init__(self, here: Ground) -> None:
        self.notes: list[str] = []
        self.seconds = 0.0
        self._here = here

    def start(self, step: str, label: str) -> None:
        self._here.tell(label, 0.0)

    def progress(self, what: str, fraction: float) -> None:
        self._here.tell(what, fraction)

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self.seconds += seconds

    def failed(self, step: str, label: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)
