"""Runs steps on the nodes of a Ray cluster: the same JSON task, on a node that has everything it
needs.

    driver ──JSON──▶ Ray task on a node ──▶ child process with limits (`local`), as on any machine
       ◀─JSON──────────┘     files ──▶ a folder that all nodes share, or a remote (`transfer`)

A node writes into a folder that belongs to this try only. The driver alone moves files from there
to the store. So a node that dies, or only seems to be dead, leaves nothing that is used, and
another node takes the task. Each node checks whether it fits: the same optkit, the same versions of
the tools of the step, and access to the files.

Some steps stay on this machine: user code, unless the nodes have it too, and measurements of this
machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from optkit.facts import errors
from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import OptkitError, StorageError, ToolchainMissing, WorkerFailed
from optkit.ground.execute import local
from optkit.ground.execute.concurrent import together
from optkit.ground.execute.node import NodeAnswer, as_text, packed, perform
from optkit.ground.execute.ray_cluster import connected
from optkit.ground.execute.step import Progress
from optkit.ground.execute.task import Task, TaskLimits, silent
from optkit.ground.execute.transfer import Call, RemoteCall, SharedFolder, Transfer
from optkit.ground.store import DamagedFile, Meta, RemoteLost

R = TypeVar("R")
_Way = Callable[[Task, TaskLimits, Progress], Meta]

LABEL = "ray.io/accelerator-type"
_RESOURCE = "accelerator_type:"  # the name of this resource in clusters without the label
_TRIES = 5
_SHARDS = 16  # the maximum, because each part loads the graph again
_TICK_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # the time after which optkit checks again whether a waiting task can be placed


@dataclass
class RayCluster:
    """A Ray cluster as the `executor` of a Runner. Several threads may use it.

    address: "ray" for $RAY_ADDRESS, or the cluster of this machine, or a cluster that is started
    here for the life of this process; else "ray://host:10001". note: called with a text about every
    event of a node. transfer: how files reach the nodes and return.

    Raises ToolchainMissing if Ray is not installed, or the cluster does not answer.
    """

    address: str
    note: Callable[[str], None]
    transfer: Transfer = field(default_factory=SharedFolder)
    _unfit: dict[str, str] = field(default_factory=dict)  # node → the reason why it gets no tasks

    def __post_init__(self) -> None:
        self._ray = connected(self.address)
        self._alone = threading.Lock()  # held during measurements on this machine
        self._stopped = threading.Event()

    def __call__(
        self,
        task: Task,
        limits: TaskLimits,
        progress: Progress = silent,
        *,
        scratch_root: Path | None = None,
    ) -> Meta:
        """As `local.run`. Raises ToolchainMissing if no node fits, WorkerFailed if several nodes in
        a row failed during the task."""
        if _belongs_here(task):
            return self._here(task, limits, progress, scratch_root)
        shards = min(self.cores(), _SHARDS) if task.shards else 1
        there = self._there if shards == 1 else partial(self._in_shards, shards)
        return self._or_here(there, task, limits, progress)

    def call(
        self,
        function: Call,
        argument: RemoteCall,
        *,
        device: str | None = None,
        heard: Progress = silent,
        ended: threading.Event | None = None,
    ) -> object:
        """Let a node call `function(argument, ground)`; return its JSON.

        device: the accelerator that the node must have, by the label that Ray gives it; no other
        task gets this GPU during the call. ended: when it is set, the answer is no longer needed,
        as after `stop`.

        Raises RemoteLost if files can no longer be exchanged.
        """
        out, died = Path(argument.out), list[_Died]()
        while len(died) < _TRIES:
            attempt = out.with_name(f"{out.name}-{secrets.token_hex(4)}")
            try:
                given = self.transfer.packed(argument, attempt)
                answer = self._ask(function, given, attempt, device, heard, ended)
                if answer.error is not None:
                    raise errors.from_json(answer.error)
                if answer.absent is not None:
                    raise _Absent(answer.absent)
                if answer.lacking is not None:
                    self.transfer.doubt(answer.lacking)
                    raise _Died(f"a node did not get {answer.why}")
                if answer.lost is not None:
                    self.transfer.check()
                    raise _Cut(f"a node cannot exchange files: {answer.lost}")
                if answer.unfit is None:
                    self.transfer.adopt(attempt, answer.files, out)
                    return answer.result
                self.transfer.check()
                self._leave_out(answer.node, answer.unfit)
            except DamagedFile as error:
                raise _Absent(f"the files of a node did not arrive: {error}") from error
            except _Died as how:
                died.append(how)
                self.note(f"{how}; another node takes its work")
            finally:
                self.transfer.remove(attempt)
        if isinstance(died[-1], _Cut):
            raise RemoteLost(str(died[-1]))
        raise WorkerFailed(
            f"{_TRIES} nodes in a row failed",
            where=self.address,
            hint="see the logs of the cluster; without --on the step runs here",
        )

    def each(
        self, function: Callable[..., R], *items: Sequence[object], parallel: int | None = None
    ) -> list[R]:
        """As `map`, with `parallel` calls at the same time; None: as many as there are cores. If a
        call raises, the other calls and the tasks of this cluster end."""
        return together(function, *items, parallel=parallel or self.cores(), end=self.stop)

    def _or_here(self, there: _Way, task: Task, limits: TaskLimits, progress: Progress) -> Meta:
        """Run the task `there`, or on this machine if no node can have the files that it reads."""
        try:
            return there(task, limits, progress)
        except _Absent as why:
            self.note(f"{why.message}: the step runs here")
        except RemoteLost as error:
            self.transfer.lose(error)
        return self._here(task, limits, progress, Path(task.out).parent)

    def _here(
        self, task: Task, limits: TaskLimits, progress: Progress, scratch: Path | None
    ) -> Meta:
        with self._alone:
            return local.run(task, limits, progress, scratch_root=scratch, unwanted=self._stopped)

    def _there(self, task: Task, limits: TaskLimits, progress: Progress) -> Meta:
        meta = self.call(perform, packed(task, limits), heard=progress)
        return from_json(dict[str, object], meta)

    def _in_shards(self, count: int, task: Task, limits: TaskLimits, progress: Progress) -> Meta:
        """Run parts of the task on several nodes at the same time, then merge the results on one
        node. If a part raises, the others end."""
        heard = [("", 0.0)] * count
        parts = [_shard(task, index, count) for index in range(count)]
        ended = threading.Event()

        def work(index: int) -> None:
            def note(what: str, fraction: float) -> None:
                heard[index] = (what, fraction)

            Path(parts[index].out).mkdir(mode=0o700)
            self.call(perform, packed(parts[index], limits), heard=note, ended=ended)
            note("", 1.0)

        def tell() -> None:
            slowest, fraction = min(heard, key=lambda part: part[1])
            progress(f"{count} parts, the slowest: {slowest}", fraction)

        try:
            together(work, range(count), parallel=count, end=ended.set, meanwhile=tell)
            outs = {f"shard-{index}": part.out for index, part in enumerate(parts)}
            whole = replace(task, inputs={**task.inputs, **outs})
            return self._or_here(self._there, whole, limits, progress)
        finally:
            for part in parts:
                shutil.rmtree(part.out, ignore_errors=True)

    def stop(self) -> None:
        """End the tasks of all threads: they raise KeyboardInterrupt."""
        self._stopped.set()

    def label(self, device: str) -> str:
        """See `accelerator`."""
        return accelerator(device)

    def accelerators(self) -> dict[str, int]:
        """Label → number of nodes that have it."""
        return Counter(node.accelerator for node in self._nodes() if node.accelerator is not None)

    def cores(self) -> int:
        """CPUs of all nodes that get tasks."""
        return max(1, int(sum(node.cpus for node in self._nodes())))

    def _ask(
        self,
        function: Call,
        argument: RemoteCall,
        attempt: Path,
        device: str | None,
        heard: Progress,
        ended: threading.Event | None,
    ) -> NodeAnswer:
        ray, seen = self._ray, time.monotonic()
        # the attempts are counted here: a retry by Ray would write into the same folder
        remote = ray.remote(as_text).options(max_retries=0, **self._place(device))
        reference = remote.remote(function, json.dumps(to_json(argument)))
        try:
            # not inside a call of Ray, which would convert an exception of a signal handler
            future = reference.future()
            while not wait([future], timeout=_TICK_SECONDS).done:
                if self._stopped.is_set() or (ended is not None and ended.is_set()):
                    raise KeyboardInterrupt
                self.transfer.hear(attempt, heard)
                if time.monotonic() - seen > _LOOK_SECONDS:
                    self._place(device)  # raises if no node fits; Ray would wait forever
                    seen = time.monotonic()
            return from_json(NodeAnswer, json.loads(future.result()))
        except ray.exceptions.RayTaskError as error:
            raise _told(error) from error
        except ray.exceptions.RayError as error:
            raise _Died(f"a node died ({type(error).__name__})") from error
        except BaseException:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
            raise

    def _place(self, device: str | None) -> dict[str, object]:
        """Options of a Ray task that let it run on a fitting node. Raises ToolchainMissing if there
        is none."""
        fits = [node for node in self._nodes() if device in (None, node.accelerator)]
        if not fits:
            raise _nowhere(device, self.accelerators(), self._unfit)
        unfit = ",".join(sorted(self._unfit))
        labels = {"ray.io/node-id": f"!in({unfit})"} if unfit else {}
        if device is None:
            return {"num_cpus": 1, "label_selector": labels}
        gpu = {"num_cpus": 1, "num_gpus": 1, "label_selector": labels}
        if any(node.labelled for node in fits):
            return {**gpu, "label_selector": {**labels, LABEL: device}}
        return {**gpu, "accelerator_type": device}

    def _nodes(self) -> list[_Node]:
        told = [_node(found) for found in self._ray.nodes() if found["Alive"]]
        # a head node often takes no tasks, and has no cores for them
        return [node for node in told if node.cpus >= 1 and node.id not in self._unfit]

    def _leave_out(self, node: str, why: str) -> None:
        if node not in self._unfit:
            self._unfit[node] = why
            self.note(f"node {node[:8]} gets no tasks: {why}")


@dataclass(frozen=True)
class _Node:
    """A living node. `accelerator`: None without a GPU; `labelled`: whether the accelerator is a
    label of the node or a resource."""

    id: str
    cpus: float
    accelerator: str | None
    labelled: bool


class _Died(Exception):
    """A node, or its worker process, has ended."""


class _Cut(_Died):
    """A node lives, but it could not exchange files with the remote."""


class _Absent(StorageError):
    """A node does not have the files that a task names, or the driver did not get the files of the
    node."""


def accelerator(reported: str) -> str:
    """The label that Ray gives a node with a GPU of this NVML name: "NVIDIA L4" → "L4".

    It follows `_gpu_name_to_accelerator_type` of ray/_private/accelerators/nvidia_gpu.py (2.60):
    the word after the vendor, up to a hyphen; a name in mixed case completely.
    """
    match = re.match(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", reported)
    if match and len(match[1]) > 1:
        return match[1].replace(" ", "-")
    return re.sub(r"^NVIDIA\s+", "", reported).strip().replace(" ", "-")


def _shard(task: Task, index: int, count: int) -> Task:
    """A part of a task. It has a separate folder next to that of the task, and a folder in its
    checkpoint."""
    params = {**task.params, "shard": [index, count]}
    if (checkpoint := params.get("checkpoint")) is not None:
        params["checkpoint"] = f"{checkpoint}/shard-{index}-of-{count}"
    return replace(task, params=params, out=f"{task.out}-shard-{index}")


def _belongs_here(task: Task) -> bool:
    """Whether the task must run on this machine: user code is here, and a measurement is of this
    machine."""
    evidence, host = task.params.get("evidence"), task.params.get("host")
    return evidence == "measured" or host is not None or task.here


def _node(found: Mapping[str, Any]) -> _Node:
    resources = found["Resources"]
    label = found.get("Labels", {}).get(LABEL)
    named = [name.removeprefix(_RESOURCE) for name in resources if name.startswith(_RESOURCE)]
    return _Node(
        found["NodeID"],
        resources.get("CPU", 0.0),
        (label or next(iter(named), None)) if resources.get("GPU", 0.0) >= 1 else None,
        label is not None,
    )


def _nowhere(
    device: str | None, known: Mapping[str, int], unfit: Mapping[str, str]
) -> ToolchainMissing:
    there = ", ".join(f"{count} × {name}" for name, count in sorted(known.items())) or "none"
    reasons = "".join(f"; {node[:8]}: {why}" for node, why in unfit.items())
    return ToolchainMissing(
        "no node of the cluster can run this step"
        if device is None
        else f"no node of the cluster has the accelerator {device}",
        where="--on",
        hint=f"accelerators there: {there}{reasons}",
    )


def _told(error: Exception) -> OptkitError:
    """The error for an exception on a node that no step raises."""
    cause = getattr(error, "cause", None) or error
    if "failed to import" in str(cause):
        return ToolchainMissing(
            "a node cannot import optkit",
            where="--on",
            hint="install the same optkit on every node",
        )
    return OptkitError(
        f"{type(cause).__name__}: {cause}", where="a node", hint="this is a bug in optkit"
    )
