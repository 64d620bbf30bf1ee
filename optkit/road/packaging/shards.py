"""The weights of a model in safetensors files of limited size, with an index if there are several.

The names are those of Hugging Face models: model.safetensors, or
model-00001-of-00002.safetensors, ….
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

BYTES = 5 << 30
"""Of one file, as mlx-lm and transformers cut them; a longer tensor makes a longer file."""

_INDEX = "model.safetensors.index.json"


class ShardWriter:
    """Takes tensors one after another, and holds those of one file in memory. `form`: the word in
    the metadata of the files that says for which library they are: "mlx", "pt"."""

    def __init__(self, folder: Path, form: str, limit: int | None = None) -> None:
        self._folder, self._form, self._limit = folder, form, limit or BYTES
        self._open: dict[str, np.ndarray] = {}
        self._written: list[tuple[str, ...]] = []  # names of each file's tensors
        self._bytes = 0

    def add(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Tensors that belong into one file."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self._open and sum(map(_bytes, self._open.values())) + size > self._limit:
            self._flush()
        self._open |= tensors
        self._bytes += size

    def files(self) -> dict[str, Path | bytes]:
        """All files, and the index."""
        if self._open:
            self._flush()
        count = len(self._written)
        if count == 1:
            return {"model.safetensors": self._file(0)}
        names = [f"model-{at + 1:05d}-of-{count:05d}.safetensors" for at in range(count)]
        places = {
            tensor: name
            for name, tensors in zip(names, self._written, strict=True)
            for tensor in tensors
        }
        index = {
            "metadata": {"total_size": self._bytes},
            "weight_map": dict(sorted(places.items())),
        }
        shards: dict[str, Path | bytes] = {name: self._file(at) for at, name in enumerate(names)}
        return {**shards, _INDEX: f"{json.dumps(index, indent=1)}\n".encode()}

    def _flush(self) -> None:
        save_file(self._open, self._file(len(self._written)), metadata={"format": self._form})
        self._written.append(tuple(self._open))
        self._open = {}

    def _file(self, at: int) -> Path:
        return self._folder / f"{at}.safetensors"


def _bytes(tensor: np.ndarray) -> int:
    return tensor.nbytes
