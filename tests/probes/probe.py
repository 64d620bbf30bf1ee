"""A probe: a small change of one kind, as edits of files. A test applies it to a copy of the tree,
checks that it works there, and counts the files that it takes: how far a change spreads.

A module of this folder has one `PROBE`, and `check()`, which runs in the copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("optkit", "recipes", "calibration", "eval", "examples", "tests/probes", "tests/artifact",
          "tests/quantization/workshop.py", "tests/report", "tests/networks.py")  # fmt: skip
_LEFT = shutil.ignore_patterns("__pycache__", "*.pyc")


class Outdated(Exception):
    """An edit does not fit today's file."""


@dataclass(frozen=True)
class Edit:
    """`new` takes the place of `old`, a text that stands once in the file; the file of an empty
    `old` is new."""

    file: str
    old: str
    new: str

    def applied(self, text: str | None) -> str:
        """The new content of the file. Raises Outdated."""
        if not self.old:
            if text is not None:
                raise Outdated(f"{self.file} exists; name the new file of the probe otherwise")
            return self.new
        count = 0 if text is None else text.count(self.old)
        if text is None or count != 1:
            raise Outdated(
                f"{self.file} has the text {self.old!r} {count} times, not once; look where the "
                "change belongs today, and correct `old` and `new`"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Probe:
    """`what` is changed; `most`: the files that it may take."""

    what: str
    most: int
    edits: Sequence[Edit]

    @property
    def files(self) -> set[str]:
        return {edit.file for edit in self.edits}

    def contents(self, root: Path) -> dict[str, str]:
        """File → its new content. Raises Outdated."""
        found: dict[str, str] = {}
        for edit in self.edits:
            path = root / edit.file
            old = found.get(edit.file, path.read_text("utf-8") if path.exists() else None)
            found[edit.file] = edit.applied(old)
        return found


def copied(probe: Probe, to: Path) -> None:
    """Write a copy of the tree with the change."""
    for name in COPIED:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
        else:
            shutil.copytree(ROOT / name, to / name, ignore=_LEFT)
    for file, content in probe.contents(to).items():
        (to / file).write_text(content, encoding="utf-8")
