"""Python's standard library as text: which modules train and calibrate, and which are held out.

A module is a file or a package at the top of the standard library. Every tenth in alphabetical
order is held out, whole, so that no file is seen in part. Tests, tables (encodings, pydoc_data)
and programs that are no library (idlelib, lib2to3, turtledemo) are left out, and so is what newer
Pythons dropped (distutils). Another version of Python has other text: compare figures of one.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({
    "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
    "pydoc_data", "site-packages", "test", "tests", "turtledemo",
})  # fmt: skip


def training() -> Iterator[str]:
    """The text of each file of the training modules."""
    names = modules()
    return _texts(name for at, name in enumerate(names) if at % 10 != 9)


def held_out() -> Iterator[str]:
    """The text of each file of the held-out modules."""
    return _texts(modules()[9::10])


def modules() -> list[str]:
    """The names at the top of the standard library, in order: "abc.py", "asyncio", …"""
    return sorted({path.relative_to(_root()).parts[0] for path in _files(_root())})


def _texts(names: Iterator[str] | list[str]) -> Iterator[str]:
    for name in names:
        path = _root() / name
        for file in _files(path) if path.is_dir() else [path]:
            yield file.read_text(encoding="utf-8", errors="replace")


def _files(folder: Path) -> list[Path]:
    """Its Python files, in order, without what is left out."""
    found = sorted(folder.rglob("*.py"))
    return [file for file in found if LEFT_OUT.isdisjoint(file.relative_to(_root()).parts)]


def _root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])
