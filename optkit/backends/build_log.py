"""What TensorRT's builder says while it builds: how far it is, and why it refused.

Its layers and memory are in `layer_list`.
"""

from __future__ import annotations

import re
from typing import Any

_WRAPPED = re.compile(r"^.*?Error Code \d+: [\w ]+ \((?P<what>.*?)\.?\s+In \w+ at \S+\)$")
_PLACE = re.compile(r"\[[\w.]+:\d+: \w+\] ")


class Phases:
    """Nested phases, each of a known number of steps, folded into one fraction that only rises."""

    def __init__(self) -> None:
        self._open: dict[str, list[Any]] = {}  # name → [parent, steps, steps done]
        self._fraction = 0.0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        self._open[name] = [parent, max(steps, 1), 0]

    def step(self, name: str, step: int) -> float:
        """Step number `step` of a phase is complete: the fraction of the whole, in [0, 1]."""
        if name in self._open:
            self._open[name][2] = step + 1
        roots = [name for name, (parent, _, _) in self._open.items() if parent not in self._open]
        done = max((self._done(name) for name in roots), default=0.0)
        self._fraction = max(self._fraction, min(done, 1.0))
        return self._fraction

    def finish(self, name: str) -> None:
        self._open.pop(name, None)

    def _done(self, name: str) -> float:
        _, steps, done = self._open[name]
        inner = [self._done(child) for child, row in self._open.items() if row[0] == name]
        return float((done + max(inner, default=0.0)) / steps)


def reason(errors: list[str]) -> str:
    """Log rows or parser messages in words: without places in the library's source, and without
    the CUDA error that follows every other one on a machine that has no driver."""
    lines = [line for error in errors for line in error.splitlines() if "cudaError 35" not in line]
    words = (_PLACE.sub("", _WRAPPED.sub(r"\g<what>", line)).strip("() ") for line in lines)
    return "; ".join(dict.fromkeys(word for word in words if word))
