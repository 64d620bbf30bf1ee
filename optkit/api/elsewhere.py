"""Artifacts whose device a node of a cluster has are finished there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from optkit.api import building
from optkit.api.building import Built
from optkit.api.finishing import finish
from optkit.errors import OptkitError, StorageError
from optkit.execute.local import Limits
from optkit.execute.node import Told
from optkit.execute.ray import Cluster, accelerator
from optkit.execute.runner import Runner
from optkit.store import Store
from optkit.target import available_memory, device_names


def build_one(*, target: str, runner: Runner, **settings: Any) -> Built:
    """`building.build_one`; what is pending then is finished by the runner's cluster, if it has one
    with such a device. That it has none is said at once: Ray itself would wait for ever."""
    cluster = runner.carry
    if not isinstance(cluster, Cluster):
        return building.build_one(target=target, runner=runner, **settings)
    names = dict.fromkeys(accelerator(name) for name in device_names(target))
    known = cluster.accelerators()
    node = next((name for name in names if name in known), None)
    if node is None and names:
        there = ", ".join(f"{count} × {name}" for name, count in sorted(known.items())) or "none"
        runner.listener.note(
            f"no node of the cluster has the accelerator {' or '.join(names)} (there: {there}): "
            f"what needs a device of {target} stays pending"
        )
    built = building.build_one(target=target, runner=runner, **settings)
    return built if node is None else _finished(built, node, cluster, runner)


def _finished(built: Built, node: str, cluster: Cluster, runner: Runner) -> Built:
    """With what is pending done on a node that has the accelerator `node`; what cannot be done
    there stays pending, and a note says why."""
    if not built.result["pending"]:
        return built
    label = f"finish {built.path.name} on a node with {node}"
    runner.listener.start("finish", label)
    try:
        with runner.store.scratch() as folder:
            argument = {
                "artifact": str(built.path.absolute()),
                "store": str(runner.store.root),
                "limits": asdict(runner.limits),
                "out": str(folder / "finish"),
            }
            answer = cluster.call(
                finish_here, argument, device=node, heard=runner.listener.progress
            )
    except OptkitError as error:
        runner.listener.note(f"{label}: {error}")
        return built
    meta = answer["meta"]
    runner.listener.done("finish", label, False, meta["seconds"])
    for note in meta["notes"]:
        runner.listener.note(note)
    return Built(meta["result"], built.path)


def finish_here(argument: dict[str, Any]) -> dict[str, Any]:
    """On the node: `finish`, over the store that all nodes share."""
    place = Path(argument["artifact"])
    if not place.is_dir():
        raise StorageError("the artifact is not there: its folder is not shared", where=str(place))
    limits = Limits(**argument["limits"])
    limits = Limits(min(limits.memory_bytes, available_memory()), limits.seconds)
    heard = _Heard(Told(Path(argument["out"])))
    made = finish(place, runner=Runner(Store(Path(argument["store"])), limits, heard))
    return {"meta": {"result": made.result, "notes": heard.notes, "seconds": heard.seconds}}


class _Heard:
    """A listener that keeps notes, and passes progress on."""

    def __init__(self, told: Told) -> None:
        self.notes: list[str] = []
        self.seconds = 0.0
        self._told = told

    def start(self, step: str, label: str) -> None:
        self._told(label, 0.0)

    def progress(self, what: str, fraction: float) -> None:
        self._told(what, fraction)

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self.seconds += seconds

    def note(self, text: str) -> None:
        self.notes.append(text)
