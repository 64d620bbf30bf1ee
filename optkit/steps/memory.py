"""The step that says how much memory a run takes."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

from optkit.steps.files import GRAPH, Inputs, Params, Progress, cpu

_RUNS = 3


def peak(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Peak resident memory of this process while a graph is loaded and run, less what the process
    and its libraries had before: {"bytes"}.

    params: batch, threads, host (fingerprint, for the key). The high-water mark is the kernel's
    (VmHWM, proc_pid_status(5)), so that nothing between two samples of it is missed. Before the
    graph is loaded, freed memory goes back to the system and the mark to what is resident: earlier
    steps of this process may have left room, or reached higher.
    """
    from optkit.data.spool import Spool
    from optkit.runtime import backend

    backend("onnxruntime").check()  # loads the library, which is no part of what the graph takes

    feed = Spool(inputs["samples"]).feed(params["batch"])
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # where it may not, an earlier peak counts: rather too much
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM = VmRSS: proc_pid_clear_refs(5)
    before = _status("VmRSS")
    with cpu(inputs["graph"] / GRAPH, threads=params["threads"]) as session:
        for done in range(_RUNS):
            session.run(feed)
            progress("running", (done + 1) / _RUNS)
    return {"bytes": _status("VmHWM") - before}


def _status(field: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024
