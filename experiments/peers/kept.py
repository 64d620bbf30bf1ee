"""Results that are kept: made again only when something that they depend on has changed.

One JSON file per result: {"inputs": digest, "value": ...}. A digest covers the options, the bytes
of the models, the adapters' own source and the versions of the tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def digest(*parts: Any) -> str:
    """Of anything that JSON can hold; a Path counts by its bytes, a folder's by all its files."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in _files(part):
                state.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        else:
            state.update(json.dumps(part, sort_keys=True).encode())
        state.update(b"\0")
    return state.hexdigest()


def _files(path: Path) -> Iterable[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def keep(
    file: Path, inputs: str, make: Callable[[], dict[str, Any]], *, fresh: bool = False
) -> dict[str, Any]:
    """What `file` holds for these inputs; otherwise `make()`, written there in one rename.

    A value that says "failure" is not kept: the next run tries again.
    """
    if not fresh and file.exists():
        known = json.loads(file.read_text())
        if known["inputs"] == inputs:
            return known["value"]
    value = make()
    if "failure" in value:
        return value
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"inputs": inputs, "value": value}, indent=1))
    unfinished.replace(file)
    return value


def recall(file: Path) -> dict[str, Any]:
    """What `file` holds, whatever it was made of; a "failure" where there is nothing."""
    if not file.exists():
        return {"failure": "not run yet"}
    value: dict[str, Any] = json.loads(file.read_text())["value"]
    return value
