"""A Session whose model runs in a worker: user code in this process, native code in the worker.

    caller ──length, safetensors──▶ worker (`optkit.road.worker` with step "serve")
       ◀─length, status, safetensors or error JSON──

After a crash, a hang or out-of-memory of the worker, the caller gets a WorkerFailed and continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import struct
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from optkit.facts import errors
from optkit.facts.errors import UsageError, WorkerFailed
from optkit.ground.execute import local, resident_memory
from optkit.ground.execute.task import Order, Task, TaskLimits
from optkit.ground.store import own_name

SERVE = "serve"
HEADER = struct.Struct("<Q?")  # this number of bytes follows, and whether they are a result
_TICK_SECONDS = 0.1

Feed = dict[str, np.ndarray]


def by_name(feed: object, inputs: Collection[str]) -> Feed:
    """The arrays that a caller feeds to a session, in the byte order of this machine. Raises
    UsageError if they are not given by input name."""
    if not isinstance(feed, Mapping):
        example = ", ".join(f"{name!r}: array" for name in inputs)
        raise UsageError(
            f"run() takes a dict of arrays by input name, not {type(feed).__name__}",
            where="run(feed)",
            hint=f"run({{{example}}})",
        )
    return {str(name): _native(np.asarray(value)) for name, value in feed.items()}


def _native(array: np.ndarray) -> np.ndarray:
    """The same numbers in the byte order of this machine; ONNX Runtime does not look at the
    order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class Proxy:
    """Runs `model` (an ONNX file) in a separate worker. Context manager.

    `run(feed)` takes and returns arrays by name. It raises the errors of the model's session, or
    WorkerFailed (crashed, timeout, oom) if the worker does not answer.
    """

    def __init__(
        self, model: Path, options: Mapping[str, object], limits: TaskLimits, scratch_root: Path
    ) -> None:
        self._limits = limits
        self._scratch = scratch_root / own_name()
        self._scratch.mkdir(parents=True, mode=0o700)
        child_in, self._to = os.pipe()
        self._from, child_out = os.pipe()
        self._log = (self._scratch / "log").open("wb")
        task = Task(SERVE, {"model": str(model.absolute())}, options, out=str(self._scratch))
        order = Order(task, self._scratch / "result.json", pipes=(child_in, child_out))
        try:
            self._child = local.spawn(
                order,
                local.WORKER,
                self._scratch,
                log=self._log.fileno(),
                fds=(child_in, child_out),
            )
        finally:
            os.close(child_in)
            os.close(child_out)
        try:
            inputs, outputs = json.loads(self._receive())
        except BaseException:
            self.close()
            raise
        self.inputs: tuple[str, ...] = tuple(inputs)
        self.outputs: tuple[str, ...] = tuple(outputs)

    def run(self, feed: Feed) -> Feed:
        from safetensors.numpy import load, save

        given = by_name(feed, self.inputs)
        # not np.ascontiguousarray, which makes a scalar one-dimensional
        arrays = {name: np.asarray(array, order="C") for name, array in given.items()}
        try:
            write_message(self._to, save(arrays), True)
        except BrokenPipeError as error:
            raise self._failed("crashed", "ended") from error
        return load(self._receive())

    def close(self) -> None:
        for fd in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(fd)
        local.end(self._child, self._scratch.name)
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _receive(self) -> bytes:
        size, sound = HEADER.unpack(self._read(HEADER.size))
        body = self._read(size)
        if not sound:
            raise errors.from_json(json.loads(body))
        return body

    def _read(self, size: int) -> bytes:
        deadline = time.monotonic() + self._limits.seconds
        parts: list[bytes] = []
        while size:
            if select.select([self._from], [], [], _TICK_SECONDS)[0]:
                part = os.read(self._from, min(size, 1 << 20))
                if not part:
                    raise self._failed("crashed", "ended while it ran the model")
                parts.append(part)
                size -= len(part)
            elif time.monotonic() > deadline:
                raise self._failed("timeout", f"gave no answer in {self._limits.seconds:.0f} s")
            if resident_memory.resident(self._child.pid) > self._limits.memory_bytes:
                raise self._failed("oom", "needed more memory than it may")
        return b"".join(parts)

    def _failed(self, verdict: str, how: str) -> WorkerFailed:
        log = (self._scratch / "log").read_bytes()[-4096:].decode("utf-8", "replace")
        return WorkerFailed(f"the session's worker {how}", verdict=verdict, log=log)


def write_message(fd: int, body: bytes, sound: bool) -> None:
    """Write one message: a result if `sound`, otherwise an error as JSON."""
    view = memoryview(HEADER.pack(len(body), sound) + body)
    while view:
        view = view[os.write(fd, view) :]
