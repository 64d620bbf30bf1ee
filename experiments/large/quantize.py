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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command import measure


def quantized(model: Path, folder: Path, memory: str, settings: Sequence[str]) -> dict[str, Any]:
    """One `optkit quantize` of `model`, with the store in `folder`."""
    words = ["quantize", str(model), "--target", "l4", "--precision", "int4", "--memory", memory]
    for setting in settings:
        words += ["--set", setting]
    seconds, peak = measure(words, folder)
    read, written = size(model.parent), size(folder / "out")
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
            found = quantized(model, work, given.memory, settings)
            print(json.dumps({"store": store, **found}), flush=True)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
