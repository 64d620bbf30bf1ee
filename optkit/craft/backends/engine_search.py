"""A longer search for a faster engine, behind an engine that is built already."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from optkit.facts.engines import SEARCH_MINUTES, BuildSpec
from optkit.ground.runtimes import Progress

_HIGHEST_LEVEL = 5
B = TypeVar("B")


class _SearchEnds(Exception):
    """The time is over. It cancels the build."""


def search(
    build: Callable[[BuildSpec, Progress], B], built: B, spec: BuildSpec, progress: Progress
) -> tuple[B, str | None]:
    """The engine of the highest level, if the minutes of the specification suffice for it;
    otherwise the one that is built. With what became of the search."""
    minutes = spec.options.get(SEARCH_MINUTES)
    if not isinstance(minutes, int | float) or minutes <= 0:
        return built, None
    ends = time.monotonic() + 60 * minutes

    def within(what: str, done: float) -> None:
        if time.monotonic() > ends:
            raise _SearchEnds
        progress(f"search at level {_HIGHEST_LEVEL}: {what}", 1.0)

    longer = replace(spec, options={**spec.options, "optimization_level": _HIGHEST_LEVEL})
    try:
        return build(longer, within), f"built at level {_HIGHEST_LEVEL}"
    except _SearchEnds:
        level = spec.options.get("optimization_level")
        return built, (
            f"the search at level {_HIGHEST_LEVEL} did not end within {minutes:g} minutes: the "
            f"engine is of level {level}. What was timed is kept, so the next search is shorter"
        )
