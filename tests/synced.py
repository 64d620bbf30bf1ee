"""Which files and folders a command syncs to the disk before and after a rename."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Around(NamedTuple):
    """One rename: what got the new name, and what was synced before and after it."""

    source: Path
    before: set[Path]
    after: set[Path]


def renames(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Around]:
    """Records from now on; what is returned finds the rename to a place."""
    calls: list[tuple[Path, Path | None]] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        calls.append((Path(f"/proc/self/fd/{descriptor}").readlink(), None))

    def recorded(move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any) -> None:
            move(source, target)
            calls.append((Path(source), Path(target)))

        return moved

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))

    def find(place: Path) -> Around:
        at = next(number for number, (_, target) in enumerate(calls) if target == place)
        before, after = (
            {path for path, target in part if target is None}
            for part in (calls[:at], calls[at + 1 :])
        )
        return Around(calls[at][0], before, after)

    return find
