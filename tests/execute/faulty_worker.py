"""A worker that fails in a chosen way at a chosen step, and otherwise works as the real one.

Started as `python faulty_worker.py FAULT STEP task.json`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FAULTS = (
    "segv", "abort", "kill", "exit137", "hang", "flood", "grandchild", "hog", "garbage",
)  # fmt: skip


def fail(fault: str, result: Path) -> None:
    if fault == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "abort":
        os.abort()
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit137":
        os._exit(137)
    elif fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif fault == "flood":
        line = b"x" * 65535 + b"\n"
        for _ in range(16384):  # 1 GiB
            os.write(1, line)
    elif fault == "grandchild":
        # one that left the session and lost its parent, then a crash
        code = "import os,time\nif os.fork() == 0:\n os.setsid(); time.sleep(3600)"
        subprocess.run([sys.executable, "-c", code], check=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "hog":
        held = []
        while True:
            held.append(bytearray(16 * 2**20))
    elif fault == "unwritable":
        result.with_suffix(".part").mkdir()  # and the real worker goes on
    elif fault == "garbage":
        result.write_text("not json at all {")
        os._exit(0)


def main() -> int:
    fault, step, path = sys.argv[1:]
    order = json.loads(Path(path).read_bytes())
    if step in ("*", order["task"]["step"]):
        fail(fault, Path(order["result"]))
    from optkit.road import worker

    return worker.main(["worker", path])


if __name__ == "__main__":
    sys.exit(main())
