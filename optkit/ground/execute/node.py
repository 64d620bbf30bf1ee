"""A task for a node of a cluster: what the driver sends, and how the node runs it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import OptkitError
from optkit.ground.devices import available_memory
from optkit.ground.execute.installed import installed
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.execute.transfer import Absent, Call, Files, Ground, RemoteCall, Unfit, ground
from optkit.ground.execute.warm_workers import Workers
from optkit.ground.store import DamagedFile, RemoteLost, RemoteReadOnly, digest_file


@dataclass(frozen=True)
class _Packed:
    """A task, its limits, and what a node must have: this version of optkit, and these files
    outside the store with these digests."""

    task: Task
    limits: TaskLimits
    optkit: str | None
    files: Mapping[str, str]


def packed(task: Task, limits: TaskLimits) -> RemoteCall:
    """The argument of `perform`. The files are those that the task names."""
    named = [Path(value) for value in _texts(task.params)]
    files = {
        str(path): digest_file(path) for path in named if path.is_absolute() and path.is_file()
    }
    body = to_json(_Packed(task, limits, installed("optkit"), files))
    return RemoteCall(body, tuple(task.inputs.values()), task.out)


def _texts(value: object) -> Iterator[str]:
    """All strings in JSON that are values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _check(work: _Packed) -> None:
    """Raise Unfit or Absent if this node would not do the task as the driver does."""
    # a step whose tools are known only at run time has their versions in its parameters
    tools = from_json(dict[str, str | None], work.task.params.get("versions", {}))
    for name, version in {"optkit": work.optkit, **work.task.versions, **tools}.items():
        if installed(name) != version:
            raise Unfit(f"{name} is {installed(name) or 'not there'} on it, and {version} here")
    for path, digest in work.files.items():
        if not Path(path).is_file() or digest_file(Path(path)) != digest:
            raise Absent(f"a node has not this file as it is here: {path}")


def perform(argument: RemoteCall, here: Ground) -> Mapping[str, object]:
    """Runs on the node: run the task of `packed` in a child of this process. Returns the facts of
    the step. Raises Unfit, Absent."""
    work = from_json(_Packed, argument.body)
    _check(work)
    task, limits = work.task, work.limits
    here.out.mkdir(mode=0o700)
    limits = replace(limits, memory_bytes=min(limits.memory_bytes, available_memory()))
    params = {
        name: here.place(value) if isinstance(value, str) else value
        for name, value in task.params.items()
    }
    if "memory" in params:
        params["memory"] = limits.memory_bytes
    inputs = {name: here.place(path) for name, path in task.inputs.items()}
    mine = replace(task, inputs=inputs, params=params, out=str(here.out))
    meta = _WORKERS(mine, limits, here.tell)
    checkpoint = params.get("checkpoint")
    if checkpoint is not None and checkpoint != task.params.get("checkpoint"):
        _remove_own(Path(str(checkpoint)))
    return meta


def _remove_own(checkpoint: Path) -> None:
    """Remove a checkpoint in the node's store; the driver removes those in its store. The
    checkpoint of a part leaves an empty folder, which is removed too if no other part uses it."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    with contextlib.suppress(OSError):
        checkpoint.parent.rmdir()


_WORKERS = Workers()


@dataclass(frozen=True)
class NodeAnswer:
    """The outcome of a function: the JSON `result` and the files that it wrote, or the reason why
    there is none. `error`: an error of the step; `absent`: files of the project that the node
    `node` lacks; `unfit`: why the node can do no task of this run; `lost`: how the remote failed
    during the task; `lacking`: the sha256 of a file that it could not get, for the reason `why`."""

    result: object = None
    files: Files = field(default_factory=dict)
    error: Mapping[str, str | None] | None = None
    absent: str | None = None
    unfit: str | None = None
    lost: str | None = None
    lacking: str | None = None
    why: str = ""
    node: str = ""


def answered(function: Call, argument: RemoteCall) -> NodeAnswer:
    """Runs on the node: the outcome of `function`."""
    try:
        with ground(argument) as here:
            return NodeAnswer(function(argument, here), here.files())
    except Unfit as why:
        return NodeAnswer(unfit=str(why))
    except Absent as why:
        return NodeAnswer(absent=str(why))
    except RemoteReadOnly as error:
        return NodeAnswer(unfit=error.line)
    except RemoteLost as error:
        return NodeAnswer(lost=error.line)
    except DamagedFile as error:
        return NodeAnswer(lacking=error.sha256, why=error.message)
    except OptkitError as error:
        return NodeAnswer(error=error.to_json())


def as_text(function: Call, argument: str) -> str:
    """Runs on the node: `answered` in JSON, with the id of the node."""
    import ray

    answer = answered(function, from_json(RemoteCall, json.loads(argument)))
    node = ray.get_runtime_context().get_node_id()
    return json.dumps(to_json(replace(answer, node=node)))
