"""What all readers share: which of them reads a path, and batches as the model's inputs want them.

The readers are `text` (.txt, .jsonl, .csv, .tsv, .parquet), `images` (a folder) and `arrays` (.npz,
.safetensors). Their `inputs` are the model's by name; None, where there is no model yet, means the
usual names in the usual dtypes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from optkit.errors import InputRefused, ToolchainMissing
from optkit.runtime import TensorInfo, batch_axis

T = TypeVar("T")
Inputs = Mapping[str, TensorInfo]

BATCH = 8
_TEXT = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_ARRAYS = (".npz", ".safetensors")


def reader_of(path: str | Path) -> str | None:
    """ "text", "arrays" or "images", by the suffix or because it is a folder; None: no reader."""
    suffix = Path(path).suffix.lower()
    if suffix in _TEXT:
        return "text"
    if suffix in _ARRAYS:
        return "arrays"
    return "images" if Path(path).is_dir() else None


def existing(path: str | Path, *, folder: bool = False) -> Path:
    """The path, which must be a file, or a folder. Raises InputRefused."""
    found = Path(path)
    if not (found.is_dir() if folder else found.is_file()):
        what = "folder" if folder else "file"
        raise InputRefused(
            f"no such {what}",
            where=str(path),
            hint="paths in args are relative to the recipe, on the command line to the current "
            "folder",
        )
    return found


def grouped(items: Iterable[T], inputs: Inputs | None) -> Iterator[list[T]]:
    """Items in lists of a batch each: as many as the model's batch axis says, else 8.

    Of a model whose batch is fixed an incomplete last one is left out. Raises InputRefused when it
    is the only one.
    """
    axis = batch_axis((inputs or {}).values())
    if not isinstance(axis, int):
        yield from groups(items, BATCH)
        return
    for index, group in enumerate(groups(items, axis)):
        if len(group) == axis:
            yield group
        elif not index:
            hint = "give more data, or export the model with a named batch axis"
            told = f"fewer samples ({len(group)}) than the model's fixed batch of {axis}"
            raise InputRefused(told, hint=hint)


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of `size`, the last one perhaps shorter."""
    items = iter(items)
    while group := list(islice(items, size)):
        yield group


def optional(module: str, extra: str) -> ModuleType:
    """A library that an extra brings. Raises ToolchainMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolchainMissing(
            f"{module.partition('.')[0]} cannot be imported: {error}",
            hint=f"pip install 'optkit[{extra}]'",
        ) from error
