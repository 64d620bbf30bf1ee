"""What both checks share: `optkit tune` on workloads of experiments/peers, their data in two
halves, and where and with what it ran.

The .npz of a workload has `calibration.<input>`, `test.<input>` and, for W2, `labels` of the test.
A search gets the calibration arrays and the first half of the test: it calibrates and tries
candidates on the former, and judges what it found on the latter. The second half of the test is in
a file of its own that no search is told of.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = PROJECT / "experiments" / "peers" / "recipes"
OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
NAMES = {"w2": "vision transformer", "w4": "decoder"}
_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "optkit", "tensorrt-rtx")
_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")

# A few inputs in a hundred exceed the ranges that 128 samples show, and carry most of the noise
_ALL = ("--set", "calibration.samples=512")

Json = dict[str, Any]


@dataclass(frozen=True)
class Half:
    """One part of a workload's data: the file, and how many test samples are in it."""

    path: Path
    samples: int

    def as_task(self) -> list[str]:
        """The options that let the recipe's task score this half."""
        return ["--set", f"eval.args.path={self.path}", "--set", f"eval.args.count={self.samples}"]


def split(source: Path, folder: Path) -> tuple[Half, Half]:
    """Write `folder`/searched.npz and fresh.npz: what a search may see, and what it may not."""
    with np.load(source) as stored:
        arrays = {name: stored[name] for name in stored.files}
    calibration = {n: array for n, array in arrays.items() if n.startswith("calibration")}
    test = {n: array for n, array in arrays.items() if n not in calibration}
    total = len(next(iter(test.values())))
    middle = total // 2
    folder.mkdir(parents=True, exist_ok=True)
    searched, fresh = folder / "searched.npz", folder / "fresh.npz"
    np.savez(searched, **calibration, **{name: array[:middle] for name, array in test.items()})
    np.savez(fresh, **{name: array[middle:] for name, array in test.items()})
    return Half(searched, middle), Half(fresh, total - middle)


def tune(model: Path, half: Half, target: str, options: Sequence[str], out: Path) -> list[str]:
    """The words of `optkit tune` for the workload that `model` is called after."""
    return [
        "tune", str(model), "--recipe", str(RECIPES / f"{model.stem}.yaml"),
        "--set", f"calibration.args.path={half.path}", *_ALL, *half.as_task(),
        "--target", target, *options, "--out", str(out), "--json",
    ]  # fmt: skip


def start(words: Sequence[str], cache: Path, log: Path) -> subprocess.Popen[str]:
    """`optkit` on a store of its own; its progress goes to `log`."""
    environment = {**os.environ, "OPTKIT_CACHE": str(cache), "PYTHONPATH": str(PROJECT)}
    with log.open("a") as told:
        return subprocess.Popen(
            [*OPTKIT, *words], env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=told,
        )  # fmt: skip


def answer(words: Sequence[str], cache: Path, log: Path) -> Json:
    """The JSON object of a command. Ends this script where it came to none; a budget that nothing
    keeps (exit code 3) is an answer."""
    process = start(words, cache, log)
    out, _ = process.communicate()
    if process.returncode not in (0, 3):
        sys.exit(f"optkit {words[0]} exited with {process.returncode}, see {log}")
    found: Json = json.loads(out)
    return found


def conditions() -> Json:
    """Date, machine and versions."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = next(line for line in cpuinfo.splitlines() if line.startswith("flags")).split()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "of": os.cpu_count(),
            "features": [name for name in _FEATURES if name in flags],
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
    }


def report(lines: Sequence[Mapping[str, Any]], facts: Json, file: Path) -> None:
    """Keep the checks beside the script. Ends it with 1 where one does not hold."""
    file.write_text(json.dumps({**conditions(), **facts, "checks": list(lines)}, indent=1) + "\n")
    failed = [line for line in lines if not line["holds"]]
    sys.exit(f"{len(failed)} of {len(lines)} checks do not hold" if failed else 0)
