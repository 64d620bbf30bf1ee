"""The format of a spool on disk: its index, and its batches in safetensors files.

folder/00000.safetensors …   batches in order, tensors "<batch>/<input>", "<batch>|labels"
folder/index.json            written last: inputs, batch sizes, one sha256 per sample
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from optkit.facts.codec import from_json
from optkit.facts.errors import IntegrityError
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.store import io_cause, is_scarce, storage_errors

SCHEMA = "optkit.spool/v1"
INDEX = "index.json"
# the index in the metadata of a single file; it has one key, so there is one byte order
EMBEDDED = "optkit.spool"


@dataclass(frozen=True)
class Index:
    """`digest`: of samples and labels, independent of their batches; `rows`: the file of each
    batch; `digests`: one sha256 per sample without its padding (`identity`); `slices`, `groups`:
    the names from the source, empty if it gave none."""

    inputs: tuple[TensorInfo, ...]
    labelled: bool
    digest: str
    rows: list[str]
    digests: list[str]
    slices: list[str] = field(default_factory=list)
    metadata: Mapping[str, object] = field(default_factory=dict)  # additional data of the caller
    groups: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> Self:
        """The index of a folder, or the one inside a single file. Raises IntegrityError."""
        try:
            if path.is_file():
                data = json.loads(opened(path).metadata()[EMBEDDED])
            else:
                data = json.loads((path / INDEX).read_bytes())
            if data.pop("schema") != SCHEMA:
                raise ValueError(SCHEMA)
            index: Self = from_json(cls, data)
            return index
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError("not a spool of samples, or damaged", where=str(path)) from error


def arrays(row: int, feed: Feed, labels: np.ndarray | None) -> dict[str, np.ndarray]:
    """The arrays of one batch for the file. They are copies, because a source may fill the same
    buffer again, and slices are not contiguous."""
    named = {f"{row}/{name}": array for name, array in feed.items()}
    if labels is not None:
        named[f"{row}|labels"] = labels
    return {name: np.array(array, order="C") for name, array in named.items()}


def opened(path: Path) -> Any:
    from safetensors import safe_open

    with storage_errors(path):
        try:
            return safe_open(path, framework="numpy")
        except Exception as error:  # the library's own exception, or an OSError
            if is_scarce(error) or (isinstance(error, FileNotFoundError) and path.is_file()):
                raise  # the library says so whatever the reason was
            raise IntegrityError("a file of samples is damaged", where=str(path)) from error


def save(arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None) -> None:
    """`save_file` that raises StorageError: the library hides an OSError in its own class."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with storage_errors(path):
        try:
            save_file(arrays, path, metadata)
        except SafetensorError as error:
            cause = io_cause(error) or OSError(errno.EIO, os.strerror(errno.EIO))
            raise cause from error
