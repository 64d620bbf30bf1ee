"""Steps: each reads files and parameters, and writes files and facts.

A module of this package defines a step: its identity, inputs, parameters and result. The module has
the name of the step. The module of the same name in `bodies` does the work; a worker imports it
when it runs the step. So only the worker opens foreign files and native libraries, and it imports
only the step that it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from optkit.ground.execute.step import Progress, Step


def perform(
    name: str,
    inputs: Mapping[str, Path],
    params: Mapping[str, object],
    out: Path,
    progress: Progress,
) -> Mapping[str, object]:
    """Run a step in this process, which is a worker. Returns the facts of its result, which the
    store keeps together with its files."""
    kinds = vars(import_module(f"{__name__}.{name}")).values()
    step = next(
        kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Step) and getattr(kind, "name", None) == name
    )
    return step.of(inputs, params).run(out, progress).to_json()
