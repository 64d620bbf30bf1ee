"""What folding has multiplied the constants of a graph by, for those who hold the same weights in
another form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True)
class Factor:
    """Input `index` of the node, a constant, was multiplied by `numbers`, float64, which broadcast
    against it."""

    node: str
    index: int
    numbers: np.ndarray


def save(factors: Sequence[Factor], file: Path) -> None:
    """Write a safetensors file."""
    tensors = {
        f"{at}:{factor.index}:{factor.node}": np.ascontiguousarray(factor.numbers)
        for at, factor in enumerate(factors)
    }
    save_file(tensors, file)


def load(file: Path) -> list[Factor]:
    """The factors in the order in which they were applied."""
    found = []
    for key, numbers in load_file(file).items():
        at, index, node = key.split(":", 2)
        found.append((int(at), Factor(node, int(index), numbers)))
    return [factor for _, factor in sorted(found, key=lambda pair: pair[0])]
