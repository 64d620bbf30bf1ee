"""Caches of a library for a device: TensorRT's timings of kernels, and the kernels that
TensorRT-RTX compiled. There is one file per device model, driver and library version, next to the
store. It makes the next build or start shorter, and is not part of any result."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from optkit.ground.devices import Gpu
from optkit.ground.store import storage_errors, write_durably

_SAVE_SECONDS = 30.0


@dataclass(frozen=True)
class KernelFile:
    """A file of bytes that only the library understands."""

    file: Path

    @classmethod
    def of(cls, folder: Path, what: str, gpu: Gpu, versions: Mapping[str, str]) -> Self:
        """The file for `what`: timings or kernels. Another driver or version has another file."""
        tools = (f"{name}-{version}" for name, version in sorted(versions.items()))
        words = (gpu.name, f"driver-{gpu.driver}", *tools)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", "_".join(words))
        return cls(folder / f"{name}.{what}")

    def read(self) -> bytes:
        """The content of the file; empty if there is none."""
        with storage_errors(self.file):
            return self.file.read_bytes() if self.file.exists() else b""

    def write(self, data: bytes) -> None:
        """Replace the file in one operation: readers see the old bytes or the new ones."""
        with storage_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.file, data)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Other processes that build on this device wait meanwhile, because they would disturb the
        timings and overwrite each other's."""
        from filelock import FileLock

        with storage_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.file.with_suffix(f"{self.file.suffix}.lock")):
            yield

    @contextlib.contextmanager
    def saving(self, content: Callable[[], bytes]) -> Iterator[Callable[[], None]]:
        """Writes the content after a block, however it ends. The block calls the function now and
        then; it writes every half a minute, so a process that is killed loses no more."""
        written = time.monotonic()

        def save() -> None:
            nonlocal written
            if time.monotonic() - written >= _SAVE_SECONDS:
                self.write(content())
                written = time.monotonic()

        try:
            yield save
        finally:
            self.write(content())
