"""Calibration samples from a workload's .npz (`calibration.<input>` arrays)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BATCH = 16


def samples(path: str) -> Iterator[dict[str, np.ndarray]]:
    """Feeds by input name, in the order of the file."""
    with np.load(path) as stored:
        found = {
            name[12:]: stored[name] for name in stored.files if name.startswith("calibration.")
        }
    for start in range(0, len(next(iter(found.values()))), BATCH):
        yield {name: array[start : start + BATCH] for name, array in found.items()}
