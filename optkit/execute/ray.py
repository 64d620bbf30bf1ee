"""Steps on the nodes of a Ray cluster: the same JSON task, carried to a node that has all it needs.

    driver ──JSON──▶ Ray task on a node ──▶ child process with limits (`local`), as anywhere
           ◀─JSON──────────┘     files ──▶ the store's folder, which all nodes share

A node writes into a folder of that try alone; only the driver moves files from there to where the
store expects them. So a node that dies, or was only thought dead, leaves nothing that counts, and
the task goes to another. A node decides by itself whether it fits: the same optkit, the same
versions of the step's tools, and the store in its place.

What belongs to this machine stays here: the user's code, unless nodes have it too, and what is
measured on it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optkit import errors
from optkit.errors import OptkitError, StorageError, ToolchainMissing, WorkerFailed
from optkit.execute import local
from optkit.execute.local import Limits, Progress
from optkit.execute.node import Call, as_text, hear, packed, perform, progress_file

LABEL = "ray.io/accelerator-type"
_RESOURCE = "accelerator_type:"  # how clusters without that label name it
_TRIES = 5
_SHARDS = 16  # at most: each of them opens the graph anew
_TICK_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between two looks at whether a waiting task can still be placed
_SEEN_SECONDS = 30.0  # until files of another node are expected to show in the shared folder


@dataclass
class Cluster:
    """A Ray cluster as a Runner's `carry`. Safe for several threads.

    address: "ray" for $RAY_ADDRESS, or the cluster of this machine, or one started here for as long
    as this process lives; else "ray://host:10001". note: told in words what happened to nodes.
    Raises ToolchainMissing where Ray is not installed or the cluster does not answer.
    """

    address: str
    note: Callable[[str], None]
    _unfit: dict[str, str] = field(default_factory=dict)  # node → why it gets no tasks

    def __post_init__(self) -> None:
        self._ray = _connected(self.address)
        self._alone = threading.Lock()  # what is measured here
        self._stopped = threading.Event()

    def __call__(
        self,
        task: dict[str, Any],
        limits: Limits,
        progress: Progress = lambda what, fraction: None,
        *,
        scratch_root: Path | None = None,
    ) -> dict[str, Any]:
        """As `local.run`. Raises ToolchainMissing where no node fits, WorkerFailed where node after
        node died of it."""
        if _belongs_here(task):
            with self._alone:
                return local.run(task, limits, progress, scratch_root=scratch_root)
        shards = min(self.cores(), _SHARDS) if task.get("shards") else 1
        if shards > 1:
            return self._in_shards(task, limits, progress, shards)
        return self._one(task, limits, progress)

    def call(
        self,
        function: Call,
        argument: dict[str, Any],
        *,
        device: str | None = None,
        heard: Progress = lambda what, fraction: None,
    ) -> dict[str, Any]:
        """Have a node call `function(argument)`, JSON in and out: its answer {"meta", "files"}.

        argument["out"]: the folder for its files, whose sibling it gets for each try. `device`: the
        accelerator that the node must have, by the label that Ray gives it; no other task gets that
        GPU meanwhile.
        """
        out, died = Path(argument["out"]), 0
        while died < _TRIES:
            attempt = out.with_name(f"{out.name}-{secrets.token_hex(4)}")
            try:
                answer = self._ask(function, {**argument, "out": str(attempt)}, device, heard)
                if "error" in answer:
                    raise errors.from_json(answer["error"])
                if "absent" in answer:
                    raise _Absent(answer["absent"])
                if "unfit" not in answer:
                    _adopt(attempt, answer["files"], out)
                    return answer
                self._leave_out(answer["node"], answer["unfit"])
            except _Died as how:
                died += 1
                self.note(f"{how}; its work goes to another")
            finally:
                _remove(attempt)
        raise WorkerFailed(
            f"{_TRIES} nodes in a row could not do it",
            where=self.address,
            hint="see the cluster's own logs; without --on it runs here",
        )

    def _one(self, task: dict[str, Any], limits: Limits, progress: Progress) -> dict[str, Any]:
        try:
            meta: dict[str, Any] = self.call(perform, packed(task, limits), heard=progress)["meta"]
            return meta
        except _Absent as why:
            self.note(f"{why}: the step runs here")
            with self._alone:
                return local.run(task, limits, progress, scratch_root=Path(task["out"]).parent)

    def _in_shards(
        self, task: dict[str, Any], limits: Limits, progress: Progress, count: int
    ) -> dict[str, Any]:
        """Parts of the task on several nodes at once, then put together on one."""
        heard = [("", 0.0)] * count
        parts = [_shard(task, index, count) for index in range(count)]

        def work(index: int) -> None:
            def note(what: str, fraction: float) -> None:
                heard[index] = (what, fraction)

            Path(parts[index]["out"]).mkdir(mode=0o700)
            self._one(parts[index], limits, note)

        try:
            with ThreadPoolExecutor(count) as pool:
                futures = [pool.submit(work, index) for index in range(count)]
                try:
                    while wait(futures, timeout=_TICK_SECONDS).not_done:
                        slowest, fraction = min(heard, key=lambda told: told[1])
                        progress(f"{count} parts, the slowest: {slowest}", fraction)
                except BaseException:
                    self.stop()
                    raise
            for future in futures:
                future.result()
            made = {f"shard-{index}": part["out"] for index, part in enumerate(parts)}
            return self._one({**task, "inputs": {**task["inputs"], **made}}, limits, progress)
        finally:
            for part in parts:
                shutil.rmtree(part["out"], ignore_errors=True)

    def stop(self) -> None:
        """End the tasks of all threads: they raise KeyboardInterrupt."""
        self._stopped.set()

    def accelerators(self) -> dict[str, int]:
        """Label → number of nodes that have it."""
        found: dict[str, int] = {}
        for node in self._nodes():
            if node.accelerator is not None:
                found[node.accelerator] = found.get(node.accelerator, 0) + 1
        return found

    def cores(self) -> int:
        """CPUs of all nodes that get tasks."""
        return max(1, int(sum(node.cpus for node in self._nodes())))

    def _ask(
        self, function: Call, argument: dict[str, Any], device: str | None, heard: Progress
    ) -> dict[str, Any]:
        ray, seen = self._ray, time.monotonic()
        # the tries are counted here: a second try of Ray's own would write into the same folder
        remote = ray.remote(as_text).options(max_retries=0, **self._place(device))
        reference = remote.remote(function, json.dumps(argument))
        try:
            # not in a call of Ray's: what a signal's handler raises there, it raises as another
            future = reference.future()
            while not wait([future], timeout=_TICK_SECONDS).done:
                if self._stopped.is_set():
                    raise KeyboardInterrupt
                hear(Path(argument["out"]), heard)
                if time.monotonic() - seen > _LOOK_SECONDS:
                    self._place(device)  # Ray itself would wait for ever
                    seen = time.monotonic()
            answer: dict[str, Any] = json.loads(future.result())
            return answer
        except ray.exceptions.RayTaskError as error:
            raise _told(error) from error
        except ray.exceptions.RayError as error:
            raise _Died(f"a node died ({type(error).__name__})") from error
        except BaseException:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
            raise

    def _place(self, device: str | None) -> dict[str, Any]:
        """Options of a Ray task that let it run on a fitting node. Raises ToolchainMissing when
        there is none."""
        fits = [node for node in self._nodes() if device in (None, node.accelerator)]
        if not fits:
            raise _nowhere(device, self.accelerators(), self._unfit)
        wanted: dict[str, str] = {}
        if self._unfit:
            wanted["ray.io/node-id"] = f"!in({','.join(sorted(self._unfit))})"
        options: dict[str, Any] = {"num_cpus": 1, "label_selector": wanted}
        if device is not None:
            options["num_gpus"] = 1
            if any(node.labelled for node in fits):
                wanted[LABEL] = device
            else:
                options["accelerator_type"] = device
        return options

    def _nodes(self) -> list[_Node]:
        told = [_node(found) for found in self._ray.nodes() if found["Alive"]]
        # a head often takes no tasks, and has no core for any
        return [node for node in told if node.cpus >= 1 and node.id not in self._unfit]

    def _leave_out(self, node: str, why: str) -> None:
        if node not in self._unfit:
            self._unfit[node] = why
            self.note(f"node {node[:8]} gets no tasks: {why}")


@dataclass(frozen=True)
class _Node:
    """A living node: its accelerator, None without a GPU, and whether that is a label of its own or
    a resource."""

    id: str
    cpus: float
    accelerator: str | None
    labelled: bool


class _Died(Exception):
    """A node, or the worker of it, is gone."""


class _Absent(Exception):
    """A node has not the project's files that a task names."""


def accelerator(reported: str) -> str:
    """The label that Ray gives a node whose GPU reports this name to NVML: "NVIDIA L4" → "L4".

    After `_gpu_name_to_accelerator_type` of ray/_private/accelerators/nvidia_gpu.py (2.60): the
    model's token behind the vendor, without what a hyphen appends; names of mixed case whole.
    """
    match = re.match(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)", reported)
    if match and len(match[1]) > 1:
        return match[1].replace(" ", "-")
    return re.sub(r"^NVIDIA\s+", "", reported).strip().replace(" ", "-")


def _shard(task: Mapping[str, Any], index: int, count: int) -> dict[str, Any]:
    """A part of a task, with a folder of its own beside the task's, and one in its checkpoint."""
    params = {**task["params"], "shard": [index, count]}
    if "checkpoint" in params:
        params["checkpoint"] = f"{params['checkpoint']}/shard-{index}-of-{count}"
    return {**task, "params": params, "out": f"{task['out']}-shard-{index}"}


def _belongs_here(task: Mapping[str, Any]) -> bool:
    """User code lies on this machine, and so does what a measurement is of."""
    params = task["params"]
    measured = params.get("evidence") == "measured" or params.get("host") is not None
    return measured or bool(task.get("reads_code"))


def _adopt(attempt: Path, files: Mapping[str, int], out: Path) -> None:
    """Move what a node wrote to where it is expected. Raises StorageError when it does not show."""
    deadline = time.monotonic() + _SEEN_SECONDS
    for name, size in files.items():
        path = attempt / name
        while not (path.is_file() and path.stat().st_size == size):
            if time.monotonic() > deadline:
                raise StorageError(
                    "a node wrote it, and it does not show here",
                    where=str(path),
                    hint="--cache must be a folder that all nodes of the cluster share",
                )
            time.sleep(_TICK_SECONDS)
    for path in list(attempt.iterdir()) if files else []:
        path.rename(out / path.name)


def _remove(attempt: Path) -> None:
    progress_file(attempt).unlink(missing_ok=True)
    shutil.rmtree(attempt, ignore_errors=True)


def _connected(address: str) -> Any:
    """The ray module, connected once per process."""
    # without being asked, Ray writes a new token into the home folder, and reports to its makers
    token = Path.home() / ".ray" / "auth_token"
    if not ({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or token.exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ToolchainMissing(
            "ray is not installed", where="--on", hint="pip install 'optkit[ray]'"
        ) from None
    if not ray.is_initialized():
        where = {"include_dashboard": False} if address == "ray" else {"address": address}
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**where, logging_level=logging.ERROR, log_to_driver=False)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)  # Ray puts its own in its place
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ToolchainMissing(
                f"the cluster does not answer: {str(error).splitlines()[0]}",
                where=f"--on {address}",
                hint="is it up, and of the same versions of Ray and Python?",
            ) from error
    return ray


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
        "no node of the cluster can do it" if device is None
        else f"no node of the cluster has the accelerator {device}",
        where="--on",
        hint=f"accelerators there: {there}{reasons}",
    )  # fmt: skip


def _told(error: Any) -> OptkitError:
    """What a node raised that no step raises."""
    cause = getattr(error, "cause", None) or error
    if "failed to import" in str(cause):
        return ToolchainMissing(
            "a node cannot import optkit",
            where="--on",
            hint="install the same optkit on every node",
        )
    return OptkitError(f"{type(cause).__name__}: {cause}", where="a node", hint="a bug")
