"""The state of a run on disk. After a kill, a run continues from it and ends with the same bits.

    folder/state.safetensors      the position of the run, and the state of its observers
    folder/moments-0.safetensors  second moments of the finished passes

A file is replaced atomically. A file that belongs to another run, or is damaged, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from optkit.craft.calibration.observer import ColumnSums
from optkit.facts.codec import from_json
from optkit.ground.statistics import Moments, ValueStatistics
from optkit.ground.statistics.file import (
    Remark,
    read_tensors,
    value_from_arrays,
    value_to_arrays,
    write_tensors,
)
from optkit.ground.store import durably, storage_errors

_SECONDS = 10.0  # between two checkpoints; writing them takes at most a twentieth of the time
_SHARE = 20
_PRODUCT = "product "  # prefix of the arrays that belong to second moments
_ARRAYS = ("waiting", "chunk", "total", "diagonal")  # of `ColumnSums`


@dataclass(frozen=True)
class Position:
    """The position of a run: the number of finished `passes`, the samples of the next pass that are
    `done`, their digest `data`, the groups of values that share a pass, and the sizes of
    batches."""

    passes: int
    done: int
    data: str
    groups: list[list[str]]
    sizes: list[int]


@dataclass(frozen=True)
class _Header:
    key: str
    position: Position
    values: dict[str, Remark]
    products: dict[str, tuple[int, int]]
    """`held` and `count` of `ColumnSums`."""


@dataclass
class State:
    """`values`: the state of the observers; `products`: the second moments of this pass so far."""

    position: Position
    values: dict[str, ValueStatistics]
    products: dict[str, ColumnSums]


class Checkpoint:
    """Reads and writes the state in `folder` (None: nowhere). `identity`: JSON that identifies the
    run; a state with another identity is ignored."""

    def __init__(self, folder: Path | None, identity: object) -> None:
        self._folder = folder
        self._key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self._next = time.monotonic() + _SECONDS
        if folder is not None:
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)

    @property
    def due(self) -> bool:
        return self._folder is not None and time.monotonic() >= self._next

    def write(self, state: State) -> None:
        """Raises StorageError."""
        if self._folder is None:
            return
        started = time.monotonic()
        tensors: dict[str, np.ndarray] = {}
        remarks = {}
        for name, value in state.values.items():
            arrays, remarks[name] = value_to_arrays(value)
            tensors |= {f"{kind}/{name}": array for kind, array in arrays.items()}
        for name, sums in state.products.items():
            tensors |= {f"{_PRODUCT}{kind}/{name}": getattr(sums, kind) for kind in _ARRAYS}
        counts = {name: (sums.held, sums.count) for name, sums in state.products.items()}
        header = _Header(self._key, state.position, remarks, counts)
        _replace(self._folder / "state.safetensors", tensors, header)
        ended = time.monotonic()
        self._next = ended + max(_SECONDS, _SHARE * (ended - started))

    def read(self) -> State | None:
        """The state of an earlier run with the same identity, or None."""
        if self._folder is None:
            return None
        try:
            metadata, tensors = read_tensors(self._folder / "state.safetensors", mapped="-")
            header = from_json(_Header, metadata)
            if header.key != self._key:
                return None
            parts: dict[str, dict[str, np.ndarray]] = {name: {} for name in header.values}
            for key, array in tensors.items():
                kind, _, name = key.partition("/")
                if not kind.startswith(_PRODUCT):
                    parts[name][kind] = array
            values = {
                name: value_from_arrays(parts[name], remark)
                for name, remark in header.values.items()
            }
            products = {}
            for name, (held, count) in header.products.items():
                arrays = {kind: tensors[f"{_PRODUCT}{kind}/{name}"] for kind in _ARRAYS}
                products[name] = ColumnSums(**arrays, held=held, count=count)
            return State(header.position, values, products)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def write_moments(folder: Path, group: int, moments: Mapping[str, Moments]) -> None:
    """Write the second moments of a pass to a file. Raises StorageError."""
    tensors = {f"total/{name}": moment.total for name, moment in moments.items()}
    tensors |= {f"diagonal/{name}": moment.diagonal for name, moment in moments.items()}
    counts = {name: moment.count for name, moment in moments.items()}
    _replace(_moments_file(folder, group), tensors, counts)


def read_moments(folder: Path, groups: Sequence[int]) -> dict[str, Moments]:
    """The second moments of some passes, mapped from their files. Raises OSError or ValueError if
    they are damaged."""
    moments = {}
    for group in groups:
        metadata, tensors = read_tensors(_moments_file(folder, group), mapped="total/")
        for name, count in from_json(dict[str, int], metadata).items():
            moments[name] = Moments(tensors[f"total/{name}"], tensors[f"diagonal/{name}"], count)
    return moments


def _moments_file(folder: Path, group: int) -> Path:
    return folder / f"moments-{group}.safetensors"


def _replace(path: Path, tensors: Mapping[str, np.ndarray], metadata: object) -> None:
    with storage_errors(path), durably(path) as temporary:
        write_tensors(temporary, tensors, metadata)
