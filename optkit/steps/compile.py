from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.engines import BuildSpec, Engine
from optkit.execute.step import Input, Result, Step, beside_the_key


@dataclass(frozen=True, kw_only=True)
class Compiled(Result):
    """An engine's file, and what its compiler says of it."""

    engine: Engine


@dataclass(frozen=True, kw_only=True)
class Compile(Step[Compiled]):
    """graph → engine file, with fused layers and landing from the compiler itself.

    `planned`: node → precision; `versions`: of the backend's library; `host`: the machine, where
    the engine depends on it; `kept`: a folder outside the step's own, in which a library may keep
    what it learned on this device.
    """

    name = "compile"
    version = 3

    graph: Input
    backend: str
    spec: BuildSpec
    planned: Mapping[str, str]
    versions: Mapping[str, str]
    host: Mapping[str, object] | None
    kept: Path | None = beside_the_key(None)
