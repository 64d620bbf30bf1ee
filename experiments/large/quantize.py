"""INT4 of a decoder larger than memory: speed and peak memory of the whole command.

    python experiments/large/quantize.py SCRATCH             13.5 GB of weights; SCRATCH needs 40 GB
    python experiments/large/quantize.py SCRATCH --layers 5  2.5 GB
    python experiments/large/quantize.py SCRATCH --layers 2 --weights gptq --samples 32 --memory 7G

Writes the decoder of decoder.py into SCRATCH unless it is there, then runs `optkit quantize` twice
with a store of its own: on an empty one, and again. Prints one line of JSON per run: seconds, MB of
input per second, and the most that parent and workers together held (resident, every 20 ms).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optkit.ground.execute.resident_memory import resident

_OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
_TICK_SECONDS = 0.02


def measure(model: Path, folder: Path, memory: str, settings: Sequence[str]) -> dict[str, Any]:
    """One `optkit quantize` of `model`, with the store in `folder`."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = ["quantize", str(model), "--target", "l4", "--precision", "int4", "--memory", memory,
             "--out", str(out)]  # fmt: skip
    for setting in settings:
        words += ["--set", setting]
    environment = {**os.environ, "OPTKIT_CACHE": str(folder / "cache")}
    started, peak = time.monotonic(), 0
    command = subprocess.Popen([*_OPTKIT, *words], env=environment, stdout=subprocess.DEVNULL)
    while command.poll() is None:
        peak = max(peak, resident(command.pid))
        time.sleep(_TICK_SECONDS)
    seconds = time.monotonic() - started
    if command.returncode:
        sys.exit(command.returncode)
    read, written = size(model.parent), size(out)
    return {
        "input_gb": round(read / 1e9, 2),
        "output_gb": round(written / 1e9, 2),
        "seconds": round(seconds, 1),
        "mb_per_second": round(read / 1e6 / seconds, 1),
        "peak_mib": round(peak / 2**20),
        "load": os.getloadavg()[0],
    }


def settings_of(weights: str, samples: int) -> list[str]:
    """What the recipe is told: the method, and for one that learns the samples of tokens.py."""
    chosen = [f"quantization.weights={weights}"]
    if samples:
        source = Path(__file__).with_name("tokens.py")
        chosen += [f"calibration.source={source}", f"calibration.samples={samples}"]
        chosen += [f"calibration.args={{count: {samples}}}"]
    return chosen


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path, help="a folder with room")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--memory", default="4GiB", help="--memory of the command")
    parser.add_argument("--weights", default="rtn", help="how they are rounded: rtn, mse, gptq")
    parser.add_argument("--samples", type=int, default=0, help="of 256 tokens, to calibrate with")
    given = parser.parse_args()
    source = given.scratch / f"decoder-{given.layers}"
    model = source / "decoder.onnx"
    if not model.exists():
        script = Path(__file__).with_name("decoder.py")
        command = [sys.executable, str(script), str(model), "--layers", str(given.layers)]
        subprocess.run(command, check=True)
    work = given.scratch / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    settings = settings_of(given.weights, given.samples)
    try:
        for store in ("empty", "full"):
            found = measure(model, work, given.memory, settings)
            print(json.dumps({"store": store, **found}), flush=True)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
