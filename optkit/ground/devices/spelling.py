"""The usual spellings of a device's name: "RTX 4090", "NVIDIA L4", "A100 PCIe 80GB", "h100_sxm".

Case, spaces, dashes, underscores and the names of vendors and brands do not count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from optkit.ground.devices.table import aliases, data_names, reported_names, titles

_NOT_COUNTED = {"nvidia", "geforce", "tesla", "apple"}


def words(name: str) -> tuple[str, ...]:
    """The words of a name that count. "SXM4" and "SXM5" become "sxm", because the model determines
    the version."""
    parts = re.split(r"[^a-z0-9]+", re.sub(r"sxm[45]\b", "sxm", name.lower()))
    return tuple(part for part in parts if part and part not in _NOT_COUNTED)


def target_name(name: str) -> str | None:
    """The target with this spelling; None if there is none."""
    named = {known for spelling, known in _spellings() if "".join(spelling) == "".join(words(name))}
    return named.pop() if len(named) == 1 else None


def candidates(name: str) -> tuple[str, ...]:
    """The targets that have all words of this name, e.g. every A100 of 80 GB for "A100-80GB"."""
    wanted = set(words(name))
    fitting = (target for target, known in _all_words().items() if wanted and wanted <= known)
    return tuple(sorted(fitting))


@cache
def _spellings() -> tuple[tuple[tuple[str, ...], str], ...]:
    """The words of every name of every target, and the target."""

    def every() -> Iterator[tuple[str, str]]:
        yield from ((name, name) for name in data_names())
        yield from aliases().items()
        yield from reported_names().items()
        yield from titles().items()

    return tuple((words(name), target) for name, target in every())


@cache
def _all_words() -> Mapping[str, set[str]]:
    """Target → the words of all its names."""
    known: defaultdict[str, set[str]] = defaultdict(set)
    for spelling, target in _spellings():
        known[target].update(spelling)
    return known
