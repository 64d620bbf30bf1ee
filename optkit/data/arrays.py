"""Arrays from .npz or .safetensors: one per model input, axis 0 counts samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from optkit.data import reading, reads
from optkit.data.reading import Inputs
from optkit.errors import InputRefused, nearest
from optkit.runtime import Feed


def samples(path: Path, inputs: Inputs | None = None) -> Iterator[Feed]:
    """Feeds of the arrays that are named like the model's inputs, in the order of the file; others
    are left alone.

    Raises InputRefused when one is missing (naming the nearest), or they differ in length.
    """
    found = _arrays(path, None if inputs is None else list(inputs))
    for rows in reading.grouped(range(_count(found, path)), inputs):
        yield {name: array[rows[0] : rows[-1] + 1] for name, array in found.items()}


def labelled(path: Path, *, label: str, inputs: Inputs | None) -> Iterator[tuple[Feed, np.ndarray]]:
    """The same with the array `label`, [samples, …]."""
    found = _arrays(path, [*inputs, label] if inputs is not None else None)
    if label not in found:
        raise _missing(label, found, path)
    count = _count(found, path)
    labels = found.pop(label)
    for rows in reading.grouped(range(count), inputs):
        part = slice(rows[0], rows[-1] + 1)
        yield {name: array[part] for name, array in found.items()}, labels[part]


def _arrays(path: Path, names: list[str] | None) -> dict[str, np.ndarray]:
    """By name; None: all of them. Raises InputRefused."""
    path = reading.existing(path)
    try:
        if path.suffix.lower() == ".npz":
            if not is_zipfile(path):
                raise ValueError("no .npz archive")  # numpy would advise to unpickle it
            with np.load(path, allow_pickle=False) as opened:
                return _chosen(opened, opened.files, names, path)
        from safetensors import safe_open

        reads.note(path)
        with safe_open(path, framework="numpy") as file:
            return _chosen(_Tensors(file), list(file.keys()), names, path)
    except InputRefused:
        raise
    except Exception as error:  # zipfile, numpy and safetensors each have classes of their own
        told = f"not arrays that can be read: {error}"
        raise InputRefused(told, where=str(path), hint="save plain numeric arrays") from error


class _Tensors:
    """A safetensors file by [name]."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getitem__(self, name: str) -> np.ndarray:
        found: np.ndarray = self._file.get_tensor(name)
        return found


def _chosen(
    stored: Any, known: list[str], names: list[str] | None, path: Path
) -> dict[str, np.ndarray]:
    missing = [name for name in names or () if name not in known]
    if missing:
        raise _missing(missing[0], known, path)
    return {name: stored[name] for name in (known if names is None else names)}


def _count(arrays: Mapping[str, np.ndarray], path: Path) -> int:
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
        raise InputRefused(
            f"arrays of different numbers of samples: {told}",
            where=str(path),
            hint="axis 0 of each counts the same samples",
        )
    return next(iter(counts.values()))


def _missing(name: str, known: Any, path: Path) -> InputRefused:
    close = nearest(name, known)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'none'}"
    return InputRefused(f"no array {name!r}", where=str(path), hint=hint)
