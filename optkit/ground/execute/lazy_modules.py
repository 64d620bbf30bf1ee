"""Modules that are loaded only when one of their names is used.

This is for modules that a library imports although it rarely needs them.
`importlib.util.LazyLoader` does not help: any `import` of a module that it created reads
`__spec__`, and so loads the module (Python 3.11).
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module that runs its code when one of its names is first used."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]  # its own code asks it, too
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(name: str) -> None:
    """Let `import name` load the module only at its first use. Nothing happens if the module is
    already imported or does not exist."""
    package, _, _ = name.rpartition(".")
    parent = find_spec(package) if package else None
    if name in sys.modules or (package and parent is None):
        return
    spec = PathFinder.find_spec(name, parent.submodule_search_locations if parent else None)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    module.__dict__.pop("__path__", None)  # so that `import name.part` loads it
    sys.modules[name] = module
