"""The state of a run on disk, so that it goes on after a kill and ends with the same bits.

    folder/state.safetensors      how far the run is, and all that its observers hold
    folder/moments-0.safetensors  second moments of the passes that are over

A file is replaced atomically; one that belongs to another run, or is damaged, is not used.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from optkit.statistics import Moments, ValueStatistics
from optkit.statistics.file import (
    read_tensors,
    value_from_arrays,
    value_to_arrays,
    write_tensors,
)
from optkit.store import durably, storage_errors

_SECONDS = (
    10.0  # between two checkpoints, and never more than a twentieth of the time to write them
)
_SHARE = 20


@dataclass
class State:
    """`numbers`: JSON (position, sizes, groups); `values`: what the observers hold; `products`: the
    arrays and counts of the pass's second moments."""

    numbers: dict[str, Any]
    values: dict[str, ValueStatistics]
    products: dict[str, tuple[dict[str, np.ndarray], list[int]]]


class Checkpoint:
    """Reads and writes the state in `folder` (None: nowhere). `identity`: JSON that tells runs
    apart; a state of another identity is none."""

    def __init__(self, folder: Path | None, identity: Any) -> None:
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
        remarks, counts = {}, {}
        for name, value in state.values.items():
            arrays, remarks[name] = value_to_arrays(value)
            tensors |= {f"{kind}/{name}": array for kind, array in arrays.items()}
        for name, (arrays, counts[name]) in state.products.items():
            tensors |= {f"product {kind}/{name}": array for kind, array in arrays.items()}
        metadata = {
            "key": self._key, "numbers": state.numbers, "values": remarks, "products": counts,
        }  # fmt: skip
        _replace(self._folder / "state.safetensors", tensors, metadata)
        ended = time.monotonic()
        self._next = ended + max(_SECONDS, _SHARE * (ended - started))

    def read(self) -> State | None:
        """The state that an earlier run of the same identity left; None without one."""
        if self._folder is None:
            return None
        try:
            metadata, tensors = read_tensors(self._folder / "state.safetensors", mapped="-")
            if metadata["key"] != self._key:
                return None
            parts: dict[str, dict[str, np.ndarray]] = {}
            for key, array in tensors.items():
                kind, _, name = key.partition("/")
                parts.setdefault(name, {})[kind] = array
            values = {
                name: value_from_arrays(_without_products(parts[name]), remark)
                for name, remark in metadata["values"].items()
            }
            products = {
                name: (_products(parts.get(name, {})), count)
                for name, count in metadata["products"].items()
            }
            return State(metadata["numbers"], values, products)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            return None


def write_moments(folder: Path, group: int, moments: Mapping[str, Moments]) -> None:
    """Keep the second moments of a pass in a file. Raises StorageError."""
    tensors = {f"total/{name}": moment.total for name, moment in moments.items()}
    tensors |= {f"diagonal/{name}": moment.diagonal for name, moment in moments.items()}
    counts = {name: moment.count for name, moment in moments.items()}
    _replace(_moments_file(folder, group), tensors, counts)


def read_moments(folder: Path, groups: Sequence[int]) -> dict[str, Moments]:
    """Those of some passes, mapped from their files. Raises OSError or ValueError for damage."""
    moments = {}
    for group in groups:
        counts, tensors = read_tensors(_moments_file(folder, group), mapped="total/")
        for name, count in counts.items():
            moments[name] = Moments(tensors[f"total/{name}"], tensors[f"diagonal/{name}"], count)
    return moments


def _moments_file(folder: Path, group: int) -> Path:
    return folder / f"moments-{group}.safetensors"


def _replace(path: Path, tensors: Mapping[str, np.ndarray], metadata: Any) -> None:
    with storage_errors(path), durably(path) as temporary:
        write_tensors(temporary, tensors, metadata)


def _products(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    start = "product "
    return {kind.removeprefix(start): a for kind, a in arrays.items() if kind.startswith(start)}


def _without_products(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {kind: a for kind, a in arrays.items() if not kind.startswith("product ")}
