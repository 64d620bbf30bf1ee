"""The code that acts: the user's, an installed package, or the import machinery.

This decides what is recorded. The import machinery, and installed packages during their import,
search for many files that do not change the result. What installed packages read later is recorded.
The time of a file is recorded if the user's own code reads it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from optkit.execute import reads as records

_HERE = str(Path(__file__).parent)
_STDLIB = tuple(f"{sysconfig.get_paths()[key]}{os.sep}" for key in ("stdlib", "platstdlib"))
_QUIET = (
    "linecache.py",
    "inspect.py",
    "tokenize.py",
    "traceback.py",
    f"importlib{os.sep}metadata{os.sep}__init__.py",
)
"""They look for things that are recorded otherwise: source lines of code, versions of packages."""


class Asker(NamedTuple):
    """The code that acts. `counts`: it is neither the import machinery nor a package that is being
    imported. `user`: it is code that is not installed, directly or through the standard library.
    `entry`: the function of the standard library that it called; `file`: the file of the nearest
    frame."""

    counts: bool
    user: bool
    entry: str
    file: str


def who_asks(*, importing: bool = False) -> Asker:
    """The code that acts now. `importing`: the action is an import, so the import machinery is on
    top of the stack."""
    frame: FrameType | None = sys._getframe(1)
    nearest, entry, package = "", "", False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_HERE):
            pass
        elif file.startswith(("<frozen importlib", "<frozen zipimport")):
            if not importing:
                return Asker(False, False, entry, nearest)
        elif file.startswith("<frozen") or (file.startswith(_STDLIB) and "-packages" not in file):
            importing = importing and "importlib" in file
            nearest = nearest or file
            entry = frame.f_code.co_name
        elif file.startswith("<"):
            pass
        elif file.startswith(records.installed_folders()):
            nearest, package, importing = nearest or file, True, False
        else:
            break
        frame = frame.f_back
    user = frame is not None and not package
    return Asker(not nearest.endswith(_QUIET), user, entry, nearest or "")
