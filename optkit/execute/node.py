"""A task that goes to a node: what the driver packs, and what the node makes of it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from optkit.devices import available_memory
from optkit.errors import OptkitError
from optkit.execute.cluster import Call
from optkit.execute.local import Limits
from optkit.execute.reads import installed
from optkit.execute.transfer import Ground, Unfit, ground
from optkit.execute.warm_workers import Workers
from optkit.store import Damaged, RemoteLost, RemoteReadOnly, digest_file


def packed(task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What `perform` needs: the task, its limits, and what a fitting node has.

    `needs`: what of the store it reads. `files`: files outside the store, with their digests: those
    that it names, and in params["imports"] those that its code imports.
    """
    named = [Path(value) for value in _texts(task["params"])]
    files = {
        str(path): digest_file(path) for path in named if path.is_absolute() and path.is_file()
    }
    return {
        "task": task,
        "limits": asdict(limits),
        "optkit": installed("optkit"),
        "files": files | task["params"].get("imports", {}),
        "needs": list(task["inputs"].values()),
        "out": task["out"],
    }


def _texts(value: Any) -> Iterator[str]:
    """All strings in JSON that are no keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _check(task: Mapping[str, Any], argument: Mapping[str, Any]) -> None:
    """Raise Unfit where this node would not do the task as the driver does."""
    # a step whose tools are known only when it is asked for names them in its parameters
    tools = {**task.get("versions", {}), **task["params"].get("versions", {})}
    wanted = {"optkit": argument["optkit"], **tools}
    for name, version in wanted.items():
        if installed(name) != version:
            raise Unfit(f"{name} is {installed(name) or 'not there'} on it, and {version} here")


def perform(argument: dict[str, Any], here: Ground) -> dict[str, Any]:
    """On the node: run the task of `packed` in a child of this process.

    {"meta"}; {"absent"}: what of the project this node lacks. Raises Unfit.
    """
    task, limits = argument["task"], Limits(**argument["limits"])
    _check(task, argument)
    for path, digest in argument["files"].items():
        if not Path(path).is_file() or digest_file(Path(path)) != digest:
            return {"absent": f"a node has not this file as it is here: {path}"}
    inputs = {name: here.place(path) for name, path in task["inputs"].items()}
    here.out.mkdir(mode=0o700)
    limits = replace(limits, memory_bytes=min(limits.memory_bytes, available_memory()))
    params = {
        name: here.place(value) if isinstance(value, str) else value
        for name, value in task["params"].items()
    }
    if "memory" in params:
        params["memory"] = limits.memory_bytes
    mine = {**task, "inputs": inputs, "params": params, "out": str(here.out)}
    meta = _WORKERS(mine, limits, here.tell)
    checkpoint = params.get("checkpoint")
    if checkpoint is not None and checkpoint != task["params"]["checkpoint"]:
        _remove_own(Path(checkpoint))
    return {"meta": meta}


def _remove_own(checkpoint: Path) -> None:
    """In the node's own store; that in the driver's the driver removes. A part's checkpoint leaves
    an empty folder around it, unless other parts were here."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    with contextlib.suppress(OSError):
        checkpoint.parent.rmdir()


_WORKERS = Workers()


def answered(function: Call, argument: dict[str, Any]) -> dict[str, Any]:
    """On the node: what came of `function`, and the files that it wrote.

    {"error"}: of the step's own; {"unfit"}: why the node can do no task of this run; {"lost"}: how
    the remote failed it meanwhile; {"lacking"}: a file that it could not have.
    """
    try:
        with ground(argument) as here:
            return {**function(argument, here), "files": here.files()}
    except Unfit as why:
        return {"unfit": str(why)}
    except RemoteReadOnly as error:
        return {"unfit": error.line}
    except RemoteLost as error:
        return {"lost": error.line}
    except Damaged as error:
        return {"lacking": error.sha256, "why": error.message}
    except OptkitError as error:
        return {"error": error.to_json()}


def as_text(function: Call, argument: str) -> str:
    """On the node: `answered` in JSON, and which node it is."""
    import ray

    answer = answered(function, json.loads(argument))
    return json.dumps({**answer, "node": ray.get_runtime_context().get_node_id()})
