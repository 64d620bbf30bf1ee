"""Samples in a file: the arrays of sample 3 are named `3 NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Sample = dict[str, np.ndarray]


def keep(path: Path, samples: Sequence[Sample]) -> None:
    arrays = {f"{at} {name}": array for at, row in enumerate(samples)
              for name, array in row.items()}  # fmt: skip
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def rows(path: Path) -> list[Sample]:
    """Those that `keep` wrote, in their order."""
    samples: dict[int, Sample] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            at, _, name = key.partition(" ")
            samples.setdefault(int(at), {})[name] = arrays[key]
    return [samples[at] for at in sorted(samples)]
