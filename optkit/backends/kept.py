"""What a library learned on a device and may use again: TensorRT's kernel timings, and the kernels
that TensorRT-RTX compiled. One file per device model, driver and library version, beside the store:
it makes the next build or start shorter, and is no part of any result.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from optkit.devices import Gpu
from optkit.store import storage_errors, write_durably


@dataclass(frozen=True)
class Kept:
    """A file of bytes that only the library understands."""

    file: Path

    @classmethod
    def of(cls, folder: Path, what: str, gpu: Gpu, versions: Mapping[str, str]) -> Self:
        """`what`: timings, kernels. Another driver or version is another file."""
        tools = (f"{name}-{version}" for name, version in sorted(versions.items()))
        words = (gpu.name, f"driver-{gpu.driver}", *tools)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", "_".join(words))
        return cls(folder / f"{name}.{what}")

    def read(self) -> bytes:
        """What was kept; empty where nothing was."""
        with storage_errors(self.file):
            return self.file.read_bytes() if self.file.exists() else b""

    def write(self, data: bytes) -> None:
        """Replace it at once: readers see the old bytes or the new."""
        with storage_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.file, data)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Other processes that build on this device wait meanwhile: they would disturb the timings
        and lose each other's."""
        from filelock import FileLock

        with storage_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.file.with_suffix(f"{self.file.suffix}.lock")):
            yield
