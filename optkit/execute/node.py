"""The two ends of a task that goes to a node: what the driver packs, and what the node makes of it.

Progress goes through a file beside the try's folder, which both see.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optkit.errors import OptkitError
from optkit.execute.local import Limits, Progress
from optkit.execute.runner import installed
from optkit.execute.staying import Workers
from optkit.store import digest_file
from optkit.target import available_memory

_TOLD_SECONDS = 0.2

Call = Callable[[dict[str, Any]], dict[str, Any]]


def packed(task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What `perform` needs: the task, its limits, and what a fitting node has.

    `files`: files outside the store that the task names, with their digests.
    """
    named = [Path(value) for value in task["params"].values() if isinstance(value, str)]
    files = {
        str(path): digest_file(path) for path in named if path.is_absolute() and path.is_file()
    }
    return {
        "task": task,
        "limits": asdict(limits),
        "optkit": installed("optkit"),
        "files": files,
        "out": task["out"],
    }


def _unfit(task: Mapping[str, Any], argument: Mapping[str, Any]) -> str | None:
    """Why this node cannot do the task of `argument` as the driver would; None: it can."""
    wanted = {"optkit": argument["optkit"], **task.get("versions", {})}
    for name, version in wanted.items():
        if installed(name) != version:
            return f"{name} is {installed(name) or 'not there'} on it, and {version} here"
    if not Path(argument["out"]).parent.is_dir():
        return f"the store is not there: {Path(argument['out']).parent.parent}"
    for path in task["inputs"].values():
        if not Path(path).exists():
            return f"the store is not the same there: {path}"
    return None


def perform(argument: dict[str, Any]) -> dict[str, Any]:
    """On the node: run the task of `packed` in a child of this process.

    {"meta"}; {"unfit"}: why the node can do no task of this run; {"absent"}: what of the project it
    lacks for this one.
    """
    task, limits = argument["task"], Limits(**argument["limits"])
    if (why := _unfit(task, argument)) is not None:
        return {"unfit": why}
    for path, digest in argument["files"].items():
        if not Path(path).is_file() or digest_file(Path(path)) != digest:
            return {"absent": f"a node has not this file as it is here: {path}"}
    out = Path(argument["out"])
    out.mkdir(mode=0o700)
    room = available_memory()
    limits = replace(limits, memory_bytes=min(limits.memory_bytes, room))
    params = dict(task["params"])
    if "memory" in params:
        params["memory"] = limits.memory_bytes
    return {"meta": _WORKERS({**task, "params": params, "out": str(out)}, limits, Told(out))}


_WORKERS = Workers()


def as_text(function: Call, argument: str) -> str:
    """On the node: `function` with JSON, and what came of it."""
    import ray

    found = json.loads(argument)
    out = Path(found["out"])
    try:
        answer = function(found)
    except OptkitError as error:
        answer = {"error": error.to_json()}
    answer["node"] = ray.get_runtime_context().get_node_id()
    answer["files"] = {
        path.relative_to(out).as_posix(): path.stat().st_size
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    return json.dumps(answer)


@dataclass
class Told:
    """On the node: progress goes through a file beside the try's folder."""

    out: Path
    at: float = 0.0

    def __call__(self, what: str, fraction: float) -> None:
        if time.monotonic() - self.at > _TOLD_SECONDS:
            self.at = time.monotonic()
            with contextlib.suppress(OSError):
                progress_file(self.out).write_text(json.dumps([what, fraction]))


def hear(attempt: Path, heard: Progress) -> None:
    with contextlib.suppress(OSError, ValueError):
        what, fraction = json.loads(progress_file(attempt).read_text())
        heard(str(what), float(fraction))


def progress_file(attempt: Path) -> Path:
    return attempt.with_name(f"{attempt.name}.progress")
