"""The log of TensorRT during a build: the progress of the builder, and the reason of a refusal.

`layer_list` reads the messages about layers and memory.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from optkit.craft.backends.layer_list import HEADER
from optkit.craft.backends.tensorrt_objects import EnumValue, Library
from optkit.ground.runtimes import Progress

_WRAPPED = re.compile(r"^.*?Error Code \d+: [\w ]+ \((?P<what>.*?)\.?\s+In \w+ at \S+\)$")
_PLACE = re.compile(r"\[[\w.]+:\d+: \w+\] ")


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildProgress:
    """Nested phases with a known number of steps, as one fraction that only rises."""

    def __init__(self) -> None:
        self._open: dict[str, _Phase] = {}
        self._fraction = 0.0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        self._open[name] = _Phase(parent, max(steps, 1))

    def step(self, name: str, step: int) -> float:
        """Step number `step` of a phase is complete: the fraction of the whole, in [0, 1]."""
        if name in self._open:
            self._open[name].done = step + 1
        roots = [name for name, phase in self._open.items() if phase.parent not in self._open]
        done = max((self._done(name) for name in roots), default=0.0)
        self._fraction = max(self._fraction, min(done, 1.0))
        return self._fraction

    def finish(self, name: str) -> None:
        self._open.pop(name, None)

    def _done(self, name: str) -> float:
        phase = self._open[name]
        inner = [self._done(child) for child, row in self._open.items() if row.parent == name]
        return (phase.done + max(inner, default=0.0)) / phase.steps


def reason(errors: list[str]) -> str:
    """Log rows or parser messages in words. Places in the library's source are removed, and so is
    the CUDA error that follows many messages on a machine without a driver."""
    lines = [line for error in errors for line in error.splitlines() if "cudaError 35" not in line]
    words = (_PLACE.sub("", _WRAPPED.sub(r"\g<what>", line)).strip("() ") for line in lines)
    return "; ".join(dict.fromkeys(word for word in words if word))


@dataclass
class BuildMessages:
    """The messages of one build that optkit uses, and the exception of a callback."""

    layers: str = ""
    memory: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    raised: BaseException | None = None

    def take(self, severity: str, message: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(message)
        elif message.startswith(HEADER):
            self.layers = message
        elif severity == "INFO" and "Memory" in message:
            self.memory.append(message)


class Logger(Protocol):
    """The logger of the library, with the record of the present build."""

    record: BuildMessages


@cache
def logger(module: str) -> Logger:
    """The only logger of the process: the library ignores a second one while one of its objects
    exists."""
    trt = importlib.import_module(module)

    class RecordingLogger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.record = BuildMessages()

        def log(self, severity: EnumValue, message: str) -> None:
            try:
                self.record.take(severity.name, message)
            except BaseException as error:  # an interrupt, which the library would only print
                self.record.raised = error

    return RecordingLogger()


def monitor(trt: Library, progress: Progress, record: BuildMessages) -> object:
    """The progress of the builder as one rising fraction. An exception of `progress` cancels the
    build."""
    phases = BuildProgress()

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            phases.start(name, parent, steps)

        def phase_finish(self, name: str) -> None:
            phases.finish(name)

        def step_complete(self, name: str, step: int) -> bool:
            try:
                progress(name, phases.step(name, step))
            except BaseException as error:  # an exception must not pass through the library
                record.raised = record.raised or error
            return record.raised is None

    return Monitor()
