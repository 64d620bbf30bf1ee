"""Which slow tests a change touches, nearest first: those in files that it changes, then those that
import a module that it changes, then those that import such a module through others.

The change is what was committed in the last hours before the newest commit: commits land in rows.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HOURS = 4


def nearest(files: Iterable[Path], changed: Iterable[str]) -> list[Path]:
    """The test files that the change touches, the nearest first. `changed`: paths in the
    repository."""
    changed = set(changed)
    modules = {_module(path) for path in changed if path.startswith("optkit/")}
    affected = _affected(modules)
    found = []
    for file in set(files):
        imported = _imported(file)
        if file.relative_to(ROOT).as_posix() in changed:
            found.append((0, 0.0, str(file)))
        elif direct := imported & modules:
            found.append((1, len(imported) / len(direct), str(file)))
        elif through := imported & affected:
            found.append((2, len(imported) / len(through), str(file)))
    return [Path(file) for *_, file in sorted(found)]


def changes() -> list[str]:
    """The paths that the newest commits change; none if this is no repository."""
    log = ["git", "log", f"--since={_newest() - _HOURS * 3600}", "--name-only", "--format="]
    told = subprocess.run(log, cwd=ROOT, capture_output=True, text=True)
    return sorted(set(told.stdout.split("\n")) - {""})


def _newest() -> int:
    told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True,
                          text=True)  # fmt: skip
    return int(told.stdout or 0)


def _affected(modules: set[str]) -> set[str]:
    """The modules that import one of these, also through others."""
    import grimp  # of import-linter

    graph = grimp.build_graph("optkit")
    known = modules & graph.modules
    return {other for one in known for other in graph.find_downstream_modules(one)}


def _imported(file: Path) -> set[str]:
    """The modules of optkit that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] == "optkit"}


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
