"""The program of a child process: `python -m optkit.road.worker task.json` runs one step and
writes a result file.

stdout and stderr go to the parent's log pipe. Progress goes through a separate pipe as JSON lines
`["what", fraction]`, with `null` after the result. The result file is written atomically; if it is
missing, the worker has crashed. A line on stdin is the path of the next task; the end of stdin ends
the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from optkit.facts.codec import from_json
from optkit.facts.errors import OptkitError, WorkerFailed
from optkit.ground.execute.lazy_modules import defer
from optkit.ground.execute.local import DONE, trim
from optkit.ground.execute.proxy import HEADER, write_message
from optkit.ground.execute.task import Answer, Order, Task
from optkit.ground.store import io_cause

_PR_SET_PDEATHSIG = 1
# onnx_ir imports it for arithmetic with symbolic axes, which few steps need: 0.3 s and 34 MB
_SELDOM = ("sympy", "onnx_ir._symbolic_shapes")


def main(argv: list[str]) -> int:
    """Run the task whose JSON file is named in argv[1]. Returns the exit status."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in _SELDOM:
        defer(name)
    for path in chain(argv[1:], iter(sys.stdin.readline, "")):
        order = Order.read(Path(path.strip()))
        answer = _answer(order)
        try:
            answer.write(order.result)
        except OSError as error:
            sys.stderr.write(f"{error}\n")  # a pipe takes the message even if the disk is full
            return os.EX_IOERR
        _tell(order, DONE)
        trim()  # otherwise memory that one step has freed would count for the next one
    return 0


def _answer(order: Order) -> Answer:
    task = order.task
    try:
        return Answer(_perform(order))
    except OptkitError as error:
        if task.stays:  # the step runs only optkit's code: no file in the traceback is the user's
            error.where = _without_folders(error.where, task)
        return Answer.of(error)
    except MemoryError:
        refused = WorkerFailed(
            f"step {task.step!r} ran out of memory", verdict="oom", hint="raise --memory"
        )
        return Answer.of(refused)
    except Exception as error:
        cause = io_cause(error)
        if cause is not None:
            return Answer.of(_storage(cause, task))
        traceback.print_exc()
        bug = OptkitError(
            f"{type(error).__name__}: {error}",
            where=f"step {task.step!r}",
            hint="this is a bug in optkit; see the log",
        )
        return Answer.of(bug)


def _without_folders(where: str | None, task: Task) -> str | None:
    """The place of an error, without the folders of the store, which do not help the user."""
    folders = [*task.inputs.values(), task.out, tempfile.gettempdir()]
    for folder in folders if where else ():
        where = re.sub(rf"{re.escape(str(folder))}(/[^\s:,']*)?/", "", str(where))
    return where


def _perform(order: Order) -> Mapping[str, object]:
    from optkit.road.steps import perform

    task = order.task
    inputs = {name: Path(path) for name, path in task.inputs.items()}
    if order.pipes is not None:
        _serve(inputs["model"], task.params, *order.pipes)
        return {}

    def report(what: str, fraction: float) -> None:
        _tell(order, json.dumps([what, fraction]).encode())

    return perform(task.step, inputs, task.params, Path(task.out), report)


def _serve(model: Path, options: Mapping[str, object], read: int, write: int) -> None:
    """Serve a session: answer feeds until the caller closes the pipe."""
    import numpy as np
    from safetensors.numpy import load, save

    from optkit.ground.runtimes import SessionOptions, simulator

    try:
        session = simulator().session(model, from_json(SessionOptions, options))
    except OptkitError as error:
        write_message(write, json.dumps(error.to_json()).encode(), False)
        return
    names = [[info.name for info in infos] for infos in (session.inputs, session.outputs)]
    write_message(write, json.dumps(names).encode(), True)
    with session, os.fdopen(read, "rb") as requests:
        while header := requests.read(HEADER.size):
            size, _ = HEADER.unpack(header)
            try:
                answer = session.run(load(requests.read(size)))
                body = save({name: np.asarray(array, order="C") for name, array in answer.items()})
            except OptkitError as error:
                write_message(write, json.dumps(error.to_json()).encode(), False)
            else:
                write_message(write, body, True)


def _tell(order: Order, line: bytes) -> None:
    if order.progress >= 0:
        with contextlib.suppress(OSError):
            os.write(order.progress, line + b"\n")


def _storage(error: OSError, task: Task) -> OptkitError:
    from optkit.ground.store import storage_errors

    try:
        with storage_errors(Path(task.out)):
            raise error
    except OptkitError as stored:
        return stored


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, for any reason."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ.get("OPTKIT_PARENT", os.getppid())):
        os._exit(1)  # the parent ended before the request took effect


if __name__ == "__main__":
    sys.exit(main(sys.argv))
