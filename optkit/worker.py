"""The child's entry: `python -m optkit.worker task.json` runs one step and writes a result file.

stdout and stderr are the parent's log pipe; progress goes through its own pipe as JSON lines
`["what", fraction]`, and `null` behind the result. That is written atomically; a missing one means
a crash. A line on stdin is the path of the next task, its end that of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from itertools import chain
from pathlib import Path
from typing import Any

from optkit.errors import OptkitError, WorkerFailed
from optkit.execute.lazy_modules import defer
from optkit.execute.local import DONE, RESULT_SCHEMA, trim
from optkit.execute.proxy import HEADER, SERVE, write_message

_PR_SET_PDEATHSIG = 1
# onnx_ir imports it for arithmetic with symbolic axes, which few steps do: 0.3 s and 34 MB
_SELDOM = ("sympy", "onnx_ir._symbolic_shapes")


def main(argv: list[str]) -> int:
    """Run the task whose JSON file is named in argv[1]. Returns the exit status."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in _SELDOM:
        defer(name)
    for path in chain(argv[1:], iter(sys.stdin.readline, "")):
        task = json.loads(Path(path.strip()).read_bytes())
        answer = _answer(task)
        try:
            _write(Path(task["result"]), answer)
        except OSError as error:
            sys.stderr.write(f"{error}\n")  # a pipe, which takes it where the disk does not
            return os.EX_IOERR
        _tell(task, DONE)
        trim()  # what a step left in the heap would count as the next one's
    return 0


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"status": "ok", "meta": _perform(task)}
    except OptkitError as error:
        if task.get("stays"):  # a step of our own code alone: no file in it is one of the user's
            error.where = _without_folders(error.where, task)
        return {"status": "error", "error": error.to_json()}
    except MemoryError:
        refused = WorkerFailed(
            f"step {task['step']!r} ran out of memory", verdict="oom", hint="raise --memory"
        )
        return {"status": "error", "error": refused.to_json()}
    except Exception as error:
        cause = _io_cause(error)
        if cause is not None:
            return {"status": "error", "error": _storage(cause, task)}
        traceback.print_exc()
        bug = OptkitError(
            f"{type(error).__name__}: {error}",
            where=f"step {task['step']!r}",
            hint="a bug; see the log",
        )
        return {"status": "error", "error": bug.to_json()}


def _without_folders(where: str | None, task: dict[str, Any]) -> str | None:
    """The place of an error without the folders of the store, of which nobody wants to hear."""
    folders = [*task["inputs"].values(), task["out"], tempfile.gettempdir()]
    for folder in folders if where else ():
        where = re.sub(rf"{re.escape(str(folder))}(/[^\s:,']*)?/", "", str(where))
    return where


def _perform(task: dict[str, Any]) -> dict[str, Any]:
    from optkit.steps import perform

    inputs = {name: Path(path) for name, path in task["inputs"].items()}
    if task["step"] == SERVE:
        return _serve(inputs["model"], task["params"], *task["pipes"])
    return perform(task["step"], inputs, task["params"], Path(task["out"]), _progress(task))


def _serve(model: Path, options: dict[str, Any], read: int, write: int) -> dict[str, Any]:
    """The worker's side: answer feeds until the caller closes the pipe."""
    import numpy as np
    from safetensors.numpy import load, save

    from optkit.runtimes import SessionOptions, simulator

    try:
        session = simulator().session(model, SessionOptions(**options))
    except OptkitError as error:
        write_message(write, json.dumps(error.to_json()).encode(), False)
        return {}
    names = {
        "inputs": [i.name for i in session.inputs],
        "outputs": [o.name for o in session.outputs],
    }
    write_message(write, json.dumps(names).encode(), True)
    with session, os.fdopen(read, "rb") as requests:
        while header := requests.read(HEADER.size):
            size, _ = HEADER.unpack(header)
            try:
                answer = session.run(load(requests.read(size)))
                body = save({name: np.ascontiguousarray(array) for name, array in answer.items()})
            except OptkitError as error:
                write_message(write, json.dumps(error.to_json()).encode(), False)
            else:
                write_message(write, body, True)
    return {}


def _progress(task: dict[str, Any]) -> Any:
    def report(what: str, fraction: float) -> None:
        _tell(task, json.dumps([what, fraction]).encode())

    return report


def _tell(task: dict[str, Any], line: bytes) -> None:
    fd = int(task.get("progress", -1))
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.write(fd, line + b"\n")


def _io_cause(error: Exception) -> OSError | None:
    """The error itself, or the one that a native library tells of in a text of its own."""
    if isinstance(error, OSError):
        return error
    rust = re.search(r"\(os error (\d+)\)", str(error))
    if rust:
        return OSError(int(rust[1]), os.strerror(int(rust[1])))
    if os.strerror(errno.ENOSPC) in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return None


def _storage(error: OSError, task: dict[str, Any]) -> dict[str, Any]:
    from optkit.store import storage_errors

    try:
        with storage_errors(Path(task["out"])):
            raise error
    except OptkitError as told:
        return told.to_json()


def _write(path: Path, answer: dict[str, Any]) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps({"schema": RESULT_SCHEMA, **answer}))
    temporary.replace(path)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, whatever killed the parent."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ.get("OPTKIT_PARENT", os.getppid())):
        os._exit(1)  # it died before the request took effect


if __name__ == "__main__":
    sys.exit(main(sys.argv))
