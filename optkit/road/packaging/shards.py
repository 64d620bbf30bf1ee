"""Weights in files of safetensors, each of a limited size, and the index of a model with several:

    model.safetensors                                        one file
    model-00001-of-00002.safetensors, …, model.safetensors.index.json

The header of a file may end with spaces, and no tensor is between others and nothing. So there is
room for a header, tensors follow as they come, and those whose size is no multiple of eight bytes
come last, because readers need each number at a multiple of its size (safetensors 0.8: README,
Format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from pydantic import JsonValue

BYTES = 5 << 30
"""Of one file, as mlx-lm and transformers cut them; a longer tensor makes a longer file."""

_INDEX = "model.safetensors.index.json"
_HEADER = 1 << 18  # bytes for the header of a file: of a thousand tensors
_ENTRY = 160  # the most bytes of a tensor in the header, without its name
_LENGTH = 8  # bytes at the start that say how long the header is
_DTYPES = MappingProxyType(
    {
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "int64": "I64",
        "int32": "I32",
        "int8": "I8",
        "uint32": "U32",
        "uint8": "U8",
    }
)


@dataclass
class _Shard:
    """A file that is being written. `entries`: of the header; `odd`: tensors that come last."""

    path: Path
    entries: dict[str, JsonValue] = field(default_factory=dict)
    odd: dict[str, np.ndarray] = field(default_factory=dict)
    bytes: int = 0
    header: int = _ENTRY

    def write(self, name: str, tensor: np.ndarray) -> None:
        end = self.bytes + tensor.nbytes
        self.entries[name] = {
            "dtype": _DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [self.bytes, end],
        }
        with self.path.open("r+b") as file:
            file.seek(_HEADER + self.bytes)
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        self.bytes = end


class ShardWriter:
    """Takes tensors one after another, and writes them at once. `form`: the word in the metadata of
    the files that says for which library they are: "mlx", "pt"."""

    def __init__(self, folder: Path, form: str, limit: int | None = None) -> None:
        self._folder, self._form, self._limit = folder, form, limit or BYTES
        self._shards: list[_Shard] = []

    def add(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Tensors that belong into one file."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        header = sum(len(json.dumps(name)) + _ENTRY for name in tensors)
        shard = self._with_room(size, header)
        shard.header += header
        for name, tensor in tensors.items():
            if tensor.nbytes % 8:
                shard.odd[name] = tensor
            else:
                shard.write(name, tensor)

    def files(self) -> dict[str, Path | bytes]:
        """All files, and the index."""
        for shard in self._shards:
            self._finish(shard)
        count = len(self._shards)
        if count == 1:
            return {"model.safetensors": self._shards[0].path}
        names = [f"model-{at + 1:05d}-of-{count:05d}.safetensors" for at in range(count)]
        named = dict(zip(names, self._shards, strict=True))
        places = {tensor: name for name, shard in named.items() for tensor in shard.entries}
        index = {
            "metadata": {"total_size": sum(shard.bytes for shard in self._shards)},
            "weight_map": dict(sorted(places.items())),
        }
        shards: dict[str, Path | bytes] = {name: shard.path for name, shard in named.items()}
        return {**shards, _INDEX: f"{json.dumps(index, indent=1)}\n".encode()}

    def _with_room(self, size: int, header: int) -> _Shard:
        """The last file; or a new one, if that would grow too long."""
        if self._shards:
            last = self._shards[-1]
            held = last.bytes + sum(tensor.nbytes for tensor in last.odd.values())
            if held + size <= self._limit and last.header + header <= _HEADER:
                return last
        path = self._folder / f"{len(self._shards)}.safetensors"
        path.touch()
        self._shards.append(_Shard(path))
        return self._shards[-1]

    def _finish(self, shard: _Shard) -> None:
        for name, tensor in sorted(shard.odd.items(), key=lambda item: -item[1].itemsize):
            shard.write(name, tensor)
        entries = {"__metadata__": {"format": self._form}, **shard.entries}
        room = _HEADER - _LENGTH
        with shard.path.open("r+b") as file:
            file.write(room.to_bytes(_LENGTH, "little"))
            file.write(json.dumps(entries).encode().ljust(room))
