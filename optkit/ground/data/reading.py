"""Common parts of all readers: which of them reads a path, and batches for the model's inputs.

The readers are `text` (.txt, .jsonl, .csv, .tsv, .parquet), `arrays` (.npz, .npy, .safetensors),
and for folders `images` and `audio` (.wav). Their `inputs` are those of the model by name; None, if
there is no model yet, means the usual names and dtypes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar

from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.facts.printable import is_text
from optkit.facts.tensors import TensorInfo, batch_axis

T = TypeVar("T")
Inputs = Mapping[str, TensorInfo]
Reader = Literal["text", "arrays", "images", "audio"]

BATCH = 8
_TEXT = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_ARRAYS = (".npz", ".npy", ".safetensors")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav",)
READ: Mapping[Reader, str] = {
    "text": ", ".join(_TEXT),
    "arrays": ", ".join(_ARRAYS),
    "images": "a folder of pictures",
    "audio": "a folder of recordings",
}
"""What each reader reads, in words."""


def reader_of(path: str | Path) -> Reader | None:
    """ "text" or "arrays" by the suffix; for a folder "images", or "audio" if it has recordings and
    no picture. None if no reader reads it."""
    suffix = Path(path).suffix.lower()
    if suffix in _TEXT:
        return "text"
    if suffix in _ARRAYS:
        return "arrays"
    return _of_folder(Path(path)) if Path(path).is_dir() else None


def _of_folder(folder: Path) -> Reader:
    sounds = False
    for file in beneath(folder):
        if file.suffix.lower() in PICTURES:
            return "images"
        sounds = sounds or file.suffix.lower() in SOUNDS
    return "audio" if sounds else "images"


def beneath(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Every file in a folder and its subfolders, including linked ones. A link that leads back to a
    folder `above` (device and inode of each folder on the way) is not followed."""
    info = folder.stat()
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from beneath(path, above | {here})
        elif path.is_file():
            yield path


def check_names(files: Iterable[Path]) -> None:
    """Raise InputRefused for a file whose name, or whose folder's, is not UTF-8: classes, groups
    and reports have these names."""
    for file in files:
        if not is_text(str(file)):
            raise InputRefused(
                f"the name {str(file)!a} is not UTF-8",
                where=str(file.parent),
                hint="rename the file or folder with letters of UTF-8",
            )


def existing(path: str | Path, reader: Reader) -> Path:
    """The path, which must be a file, or a folder, that this reader reads. Raises InputRefused."""
    place, folder = Path(path), reader in ("images", "audio")
    if not (place.is_dir() if folder else place.is_file()):
        what = "folder" if folder else "file"
        raise InputRefused(
            f"no such {what}",
            where=str(path),
            hint="paths in args are relative to the recipe, on the command line to the current "
            "folder",
        )
    if not folder and reader_of(place) != reader:
        reason = f"{place.suffix or 'a file without a suffix'} is not read as {reader}"
        raise InputRefused(reason, where=str(path), hint=f"this reader supports {READ[reader]}")
    return place


def grouped(items: Iterable[T], inputs: Inputs | None) -> Iterator[list[T]]:
    """Items in lists of one batch each, with the batch size of the model, otherwise 8. The last
    list may be shorter."""
    axis = batch_axis((inputs or {}).values())
    return groups(items, axis if isinstance(axis, int) else BATCH)


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of `size`; the last one may be shorter."""
    items = iter(items)
    while group := list(islice(items, size)):
        yield group


def optional(module: str, extra: str) -> ModuleType:
    """A library of an extra. Raises ToolchainMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolchainMissing(
            f"{module.partition('.')[0]} cannot be imported: {error}",
            hint=f"pip install 'optkit[{extra}]'",
        ) from error
