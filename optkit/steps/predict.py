from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.engines import Engine
from optkit.execute.step import Input, Result, Step, named
from optkit.measurement import Latency


@dataclass(frozen=True, kw_only=True)
class PredictedLatency(Result):
    latency: Latency


@dataclass(frozen=True, kw_only=True)
class PredictLatency(Step[PredictedLatency]):
    """Roofline bound of an engine's fused layers, or of the unfused graph while there is no engine.

    `device`: the target's name; `target`: its fingerprint, for the key; `planned` (node →
    precision) and `carrier`: for an engine that is None or does not tell its layers' sizes.
    """

    name = "predict"
    version = 3
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: Input
    device: str = named("name")
    target: Mapping[str, object]
    axes: Mapping[str, int]
    batch: int
    engine: Engine | None
    planned: Mapping[str, str]
    carrier: str
