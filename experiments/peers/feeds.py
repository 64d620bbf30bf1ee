"""The arrays of a workload as feeds. Every tool, score and timing reads its data through here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

Feed = dict[str, np.ndarray]
TEST = {"w1": 629, "w2": 629, "w3": 512, "w4": 200, "w5": 64, "w6": 64}  # samples that are scored


def model(root: Path, workload: str) -> Path:
    """The FP32 graph, as torch exported it."""
    return root / "models" / f"{workload}.onnx"


def path(root: Path, workload: str) -> Path:
    """The .npz: `calibration.<input>`, `test.<input>` and what the task needs."""
    return root / "models" / f"{workload}.npz"


def feeds(root: Path, workload: str, part: str, samples: int, batch: int = 1) -> Iterator[Feed]:
    """The first `samples` of part "calibration" or "test", in order, `batch` at a time.

    Raises ValueError where the part is smaller: a tool must not get less than the table says.
    """
    prefix = f"{part}."
    with np.load(path(root, workload)) as stored:
        names = [name for name in stored.files if name.startswith(prefix)]
        found = {name.removeprefix(prefix): stored[name] for name in names}
    for name, array in found.items():
        if len(array) < samples:
            raise ValueError(f"{workload} {part}.{name} holds {len(array)}, asked for {samples}")
    for start in range(0, samples, batch):
        stop = min(start + batch, samples)
        yield {name: array[start:stop] for name, array in found.items()}
