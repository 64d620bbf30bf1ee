"""The installed distributions and their versions. Nothing is imported for that."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path

_PYTHON = "python"
_VERSION = re.compile(r"^Version: *(\S+) *$", re.MULTILINE)


def installed(distribution: str) -> str | None:
    """The version of a distribution, or of "python"; None if it is not installed."""
    if distribution == _PYTHON:
        return platform.python_version()
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    # `found.version` parses the whole file, of which most is the README: three times as slow
    header = _VERSION.search(found.read_text("METADATA") or "")
    return header[1] if header else found.version


def versions(distributions: tuple[str, ...]) -> dict[str, str | None]:
    """Distribution → its installed version, or None."""
    return {name: installed(name) for name in distributions}


def environment() -> list[str]:
    """Python and every installed distribution with its version, in order: the names of their
    folders, "numpy-2.3.1.dist-info"."""
    names = {
        info.name
        for folder in dict.fromkeys(sys.path)
        for pattern in ("*.dist-info", "*.egg-info")
        for info in Path(folder or ".").glob(pattern)
    }
    return [f"{_PYTHON}-{platform.python_version()}", *sorted(names)]
