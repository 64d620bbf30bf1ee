"""Files that optkit ships besides code: recipes, calibration sources, evaluation tasks, examples.

The wheel contains them in this folder; in a checkout they are in the root of the repository.
"""

from __future__ import annotations

from pathlib import Path

_FOLDERS = ("recipes", "calibration", "eval", "examples")
_HERE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that holds recipes/, calibration/, eval/ and examples/."""
    return _HERE if (_HERE / "recipes").is_dir() else _HERE.parents[2]


def recipe_names() -> list[str]:
    """Names that `--recipe` takes without a path."""
    return sorted(path.stem for path in (root() / "recipes").glob("*.yaml"))


def source_names() -> list[str]:
    """Names that `--calibration` takes without a path."""
    return python_names("calibration")


def task_names() -> list[str]:
    """Names that `--eval` takes without a path."""
    return python_names("eval")


def python_names(folder: str) -> list[str]:
    """The Python files of one of the folders, without their endings."""
    return sorted(path.stem for path in (root() / folder).glob("*.py"))


def relative(path: Path) -> str | None:
    """The POSIX path of a shipped file beneath `root`; None for any other file."""
    start = root()
    inside = any(path.is_relative_to(start / folder) for folder in _FOLDERS)
    return path.relative_to(start).as_posix() if inside else None
