"""Memory of the way from a large PyTorch module to its FP16 graph, beside the size of its weights.

    python experiments/large/export.py SCRATCH             3.2 GB of FP32 weights; needs 12 GB there
    python experiments/large/export.py SCRATCH --layers 4  1.1 GB

Runs `optkit export`, `fuse` and `quantize --precision fp16` one after the other on one store, so
that each does only what the one before it did not. Prints a line of JSON per command: seconds, and
the most that parent and workers together held (resident, every 20 ms; pages mapped from files
count). Exits with 1 where that is more than the weights and 2 GiB.
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

from optkit.ground.execute.resident_memory import resident

_OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
_TICK_SECONDS = 0.02
_ALLOWED = 2 << 30  # bytes beside one copy of the weights
_HIDDEN, _WIDE = 4096, 8192
_MODEL = """\
import torch


class Block(torch.nn.Module):
    def __init__(self, hidden, wide):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden)
        self.up, self.down = torch.nn.Linear(hidden, wide), torch.nn.Linear(wide, hidden)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def create(layers, hidden, wide):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block(hidden, wide) for _ in range(layers)))
"""
_RECIPE = """\
name: large
model: {{factory: "model.py:create", args: {{layers: {layers}, hidden: {hidden}, wide: {wide}}}}}
inputs:
  input: {{dtype: float32, shape: [batch, {hidden}]}}
axes:
  batch: {{min: 1, opt: 4, max: 8}}
"""


def measure(words: Sequence[str], folder: Path, *, writes: bool = True) -> tuple[float, int]:
    """Seconds and most bytes of one optkit command, with the store, and `out` if it writes, in
    `folder`."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path, help="a folder with room")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--memory", default="10GiB", help="--memory of the commands")
    given = parser.parse_args()
    work = given.scratch / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "model.py").write_text(_MODEL)
    recipe = work / "optkit.yaml"
    recipe.write_text(_RECIPE.format(layers=given.layers, hidden=_HIDDEN, wide=_WIDE))
    weights = 4 * given.layers * (2 * _HIDDEN * _WIDE + 3 * _HIDDEN + _WIDE)
    common = ("--recipe", str(recipe), "--memory", given.memory)
    worst = 0
    try:
        for words in (
            ("export", *common),
            ("fuse", *common),
            ("quantize", *common, "--target", "l4", "--precision", "fp16"),
        ):
            seconds, peak = measure(words, work)
            peak_mib = round(peak / 2**20)
            worst = max(worst, peak_mib << 20)
            told = {"command": words[0], "weights_mib": round(weights / 2**20),
                    "seconds": round(seconds, 1), "peak_mib": peak_mib}  # fmt: skip
            print(json.dumps({**told, "load": os.getloadavg()[0]}), flush=True)
    finally:
        shutil.rmtree(work)
    sys.exit(worst > weights + _ALLOWED)


if __name__ == "__main__":
    main()
