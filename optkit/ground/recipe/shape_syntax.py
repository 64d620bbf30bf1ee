"""Shapes on the command line, in trtexec's syntax: `name:AxBxC,name2:…`."""

from __future__ import annotations

import re

from optkit.facts.errors import UsageError

_SHAPE = re.compile(r"\d+(x\d+)*")


def parse_shapes(text: str, *, where: str | None = None) -> dict[str, tuple[int, ...]]:
    """ "ids:1x128,mask:1x128" → {"ids": (1, 128), "mask": (1, 128)}. A name may contain colons.

    Raises UsageError for bad syntax, a size of zero, or a name that is given twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in text.split(","):
        name, _, sizes = item.strip().rpartition(":")
        if not name or not _SHAPE.fullmatch(sizes):
            before, equals, after = item.strip().partition("=")
            form = equals and before and _SHAPE.fullmatch(after)
            hint = f"write {before}:{after}" if form else "e.g. image:8x3x224x224"
            raise UsageError(f"{item.strip()!r} is not name:AxBxC", where=where, hint=hint)
        if name in shapes:
            raise UsageError(f"{name!r} is given twice", where=where, hint="give each input once")
        shapes[name] = tuple(int(size) for size in sizes.split("x"))
        if 0 in shapes[name]:
            raise UsageError(f"{item.strip()!r} has a size of 0", where=where, hint="at least 1")
    return shapes
