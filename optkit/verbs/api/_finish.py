"""Completes an artifact of another machine on a machine that has its device: `finish`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optkit.facts.documents.result import Result
from optkit.facts.errors import OptkitError, ToolchainMissing, UsageError
from optkit.facts.evidence import Evidence
from optkit.ground import places, runtimes
from optkit.ground.artifact import MANIFEST, Artifact, prepare
from optkit.ground.devices import Target, cpu, gpus, runs_here, target
from optkit.ground.execute.runner import Runner
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import delivery, judged_build
from optkit.road.pipeline.finishing import UnfinishedArtifact
from optkit.road.pipeline.finishing import finish as finish_build
from optkit.road.pipeline.recorded_samples import GivenTask
from optkit.show.report.build_result import joined
from optkit.show.report.contract import REPORT_FILE, report_of, result_of
from optkit.verbs.api.artifacts import load


def finish(
    artifact: str | Path,
    *,
    task: str | None = None,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> Artifact:
    """Compile what is pending, measure latency and accuracy on this machine's device, judge the
    gates again, and replace the artifact. A finished artifact does not change.

    task: FILE.py or the name of a task; its samples replace those of the build. None: the samples
        in the artifact, or else those that the store has of the build.
    data: the path that this task reads. overrides: its other args, as "eval.args.KEY=VALUE".
    strict: a latency that was measured under bad conditions is measured once more.

    Raises ToolchainMissing (no such device here, or none of its backends), IntegrityError (a
    damaged artifact), InputRefused (no samples to score, a slim copy), UsageError (a part of
    another artifact, args without a task), and what compiling and running raise.
    """
    given = _given(task, data, overrides)
    return complete(Path(artifact), workspace.runner(), task=given, strict=strict)


def complete(
    path: Path,
    runner: Runner,
    *,
    task: GivenTask | None = None,
    strict: bool = False,
    final: Path | None = None,
) -> Artifact:
    """`finish` with a given runner. final: the final folder of the artifact, which its result
    names; None: the folder where it is now."""
    final = final or path
    opened = load(path.resolve())
    opened.verify()
    _check_whole(opened, path)
    prepare(opened.path.parent, opened.path.name)
    if not opened.manifest.parts:
        return _finished(opened, str(final), runner, task, strict)
    if task is not None:
        raise UsageError(
            f"the samples of one task do not fit {' and '.join(opened.manifest.parts)}",
            where=str(path),
            hint="leave --eval out: each part is scored on the samples in its artifact",
        )
    with runner.store.scratch() as folder:  # all of them, or none
        parts = {}
        for name, part in opened.parts.items():
            shutil.copytree(part.path, folder / name)
            parts[name] = _finished(load(folder / name), str(final / name), runner, None, strict)
        results = {name: result_of(part) for name, part in parts.items()}
        whole = joined(results, model=result_of(opened).model, artifact=str(final))
        place, record = opened.path, opened.manifest.recipe
        return delivery.join(place.name, record, parts, whole, place.parent)


def _given(task: str | None, data: str | Path | None, overrides: Sequence[str]) -> GivenTask | None:
    """The task that the user named. Raises UsageError."""
    for text in overrides:
        if not text.startswith("eval.args."):
            raise UsageError(
                "it cannot change an artifact that is already built",
                where=f"--set {text}",
                hint="the settings that can be changed are the args of the task, eval.args.KEY",
            )
    if task is None and (data is not None or overrides):
        raise UsageError("there is no task for these args", hint="name it with --eval")
    if task is None:
        return None
    place = places.find_task(task, Path.cwd(), anywhere=True)
    return GivenTask(place, None if data is None else Path(data).absolute(), tuple(overrides))


def _check_whole(artifact: Artifact, path: Path) -> None:
    """Refuse a part of an artifact, because the manifest of the whole contains its digest."""
    around = artifact.path.parent
    if not (around / MANIFEST).is_file() or artifact.path.name not in load(around).manifest.parts:
        return
    raise UsageError(
        "it is a part of an artifact", where=str(path), hint=f"finish the whole artifact: {around}"
    )


def _finished(
    artifact: Artifact, final: str, runner: Runner, task: GivenTask | None, strict: bool
) -> Artifact:
    artifact.require(REPORT_FILE)
    before = result_of(artifact)
    if task is None and _is_finished(before):
        return Artifact(artifact.path, replace(artifact.manifest, result=before.to_json()))
    device = target(artifact.manifest.target)
    check_device(device, final)
    pending = [row.backend for row in before.pending]
    engine = artifact.manifest.engine
    backend = _backend(device, [*pending, *([engine.backend] if engine else [])], final)
    documented = {option.name for option in device.backends if option.documented}
    others = () if backend in documented else tuple(name for name in pending if name != backend)
    build = finish_build(
        UnfinishedArtifact(artifact, device, backend, others, task, strict), runner
    )
    report = report_of(artifact)
    rescored = task is not None
    judged = judged_build.judge_again(
        build, runner.records, report, artifact=final, rescored=rescored
    )
    return delivery.deliver_again(artifact, build, judged, runner.store, rescored=rescored)


def _is_finished(result: Result) -> bool:
    measured = result.latency is not None and result.latency.evidence is Evidence.MEASURED
    return measured and not result.pending


def check_device(device: Target, where: str) -> None:
    """Raise ToolchainMissing unless this machine has the target's device."""
    if runs_here(device):
        return
    if device.is_cpu:
        raise ToolchainMissing(
            f"it is for {device.title}; this machine is {cpu().name}, of the kind {cpu().kind}",
            where=where,
            hint=f"finish it on a machine of the kind {device.name} (`optkit devices` names the "
            "kind): the latencies of another machine would not describe it",
        )
    devices = gpus().devices
    if device.name in {gpu.target for gpu in devices}:
        return
    names = ", ".join(gpu.name for gpu in devices)
    raise ToolchainMissing(
        f"it is for {device.title}; this machine has {names or 'no GPU'}",
        where=where,
        hint="finish it on a host with that device: an engine is tuned for one model of device, and"
        " the figures of another device would not describe it",
    )


def _backend(device: Target, names: Sequence[str], where: str) -> str:
    """The first backend that is installed and compiles for this device. Backends documented for the
    device come first."""
    problems: list[OptkitError] = []
    documented = [option.name for option in device.backends if option.documented]
    for name in sorted(dict.fromkeys(names), key=lambda name: name not in documented):
        backend = runtimes.backend(name)
        try:
            backend.check()
        except ToolchainMissing as error:
            problems.append(error)
            continue
        reason = backend.offline(device)
        if reason is None:
            return name
        problems.append(ToolchainMissing(reason, where=where))
    raise problems[0]
