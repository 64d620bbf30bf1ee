"""Writes the reports of a build as Markdown into the step summary of a GitHub Actions job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from optkit.facts.documents.result import Result
from optkit.ground.progress.terminal import Terminal

_VARIABLE = "GITHUB_STEP_SUMMARY"  # names the file that the job shows


def summarize(files: Iterable[Path]) -> None:
    """Append Markdown files to the step summary, if there is one. If the summary cannot be written,
    the command prints a note and continues."""
    place = os.environ.get(_VARIABLE)
    if not place:
        return
    try:
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        with Path(place).open("a", encoding="utf-8") as summary:
            summary.write(f"{text}\n")
    except OSError as error:
        Terminal().note(f"{_VARIABLE}: {error.strerror}")


def reports(results: Iterable[Result]) -> list[Path]:
    """The Markdown of every artifact, or of each of its parts."""
    each = [part for one in results for part in (one.parts or {"": one}).values()]
    return [Path(part.artifact) / "report.md" for part in each if part.artifact]
