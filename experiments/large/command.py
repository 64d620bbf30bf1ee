"""One command of optkit, measured: seconds, and the most that it held in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from optkit.ground.execute.resident_memory import resident

_OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
_TICK_SECONDS = 0.02


def measure(words: Sequence[str], folder: Path, *, writes: bool = True) -> tuple[float, int]:
    """Seconds and most bytes of one optkit command with its workers, every 20 ms (pages mapped from
    files count). The store, and `out` if it writes, are in `folder`."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "OPTKIT_CACHE": str(folder / "cache")}
    started, peak = time.monotonic(), 0
    command = subprocess.Popen(
        [*_OPTKIT, *words, *(("--out", str(out)) if writes else ())],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    while command.poll() is None:
        peak = max(peak, resident(command.pid))
        time.sleep(_TICK_SECONDS)
    if command.returncode:
        sys.exit(command.returncode)
    return time.monotonic() - started, peak
