"""The child's entry: `python -m optkit.worker task.json` runs one step and writes a result file.

stdout and stderr are the parent's log pipe; progress goes through its own pipe as JSON lines
`["what", fraction]`. The result is written last and atomically; a missing one means a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from optkit.errors import OptkitError, WorkerFailed
from optkit.execute.local import RESULT_SCHEMA
from optkit.execute.proxy import HEADER, SERVE, write_message

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run the task whose JSON file is named in argv[1]. Returns the exit status."""
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = json.loads(Path(argv[1]).read_bytes())
    try:
        answer = {"status": "ok", "meta": _perform(task)}
    except OptkitError as error:
        answer = {"status": "error", "error": error.to_json()}
    except MemoryError:
        refused = WorkerFailed(
            f"step {task['step']!r} ran out of memory", verdict="oom", hint="raise --memory"
        )
        answer = {"status": "error", "error": refused.to_json()}
    except OSError as error:
        answer = {"status": "error", "error": _storage(error)}
    except Exception as error:
        traceback.print_exc()
        bug = OptkitError(
            f"{type(error).__name__}: {error}",
            where=f"step {task['step']!r}",
            hint="a bug; see the log",
        )
        answer = {"status": "error", "error": bug.to_json()}
    _write(Path(task["result"]), {"schema": RESULT_SCHEMA, **answer})
    return 0


def _perform(task: dict[str, Any]) -> dict[str, Any]:
    from optkit.steps import STEPS

    inputs = {name: Path(path) for name, path in task["inputs"].items()}
    if task["step"] == SERVE:
        return _serve(inputs["model"], task["params"], *task["pipes"])
    return STEPS[task["step"]].run(inputs, task["params"], Path(task["out"]), _progress(task))


def _serve(model: Path, options: dict[str, Any], read: int, write: int) -> dict[str, Any]:
    """The worker's side: answer feeds until the caller closes the pipe."""
    import numpy as np
    from safetensors.numpy import load, save

    from optkit.runtime import backend

    try:
        session = backend("onnxruntime").session(model, **options)
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
    fd = int(task.get("progress", -1))

    def report(what: str, fraction: float) -> None:
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.write(fd, json.dumps([what, fraction]).encode() + b"\n")

    return report


def _storage(error: OSError) -> dict[str, Any]:
    from optkit.store import storage_errors

    try:
        with storage_errors(Path(error.filename or ".")):
            raise error
    except OptkitError as told:
        return told.to_json()


def _write(path: Path, answer: dict[str, Any]) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(answer))
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
