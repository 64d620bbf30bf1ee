from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.engines import Engine
from optkit.execute.step import Input, Result, Step, named
from optkit.measurement import Latency


@dataclass(frozen=True, kw_only=True)
class PredictedLatency(Result):
    """`covered`: whether measurements cover this kind of model and this generation of devices."""

    latency: Latency
    covered: bool


@dataclass(frozen=True, kw_only=True)
class PredictLatency(Step[PredictedLatency]):
    """Latency by the fitted performance model: of an engine's fused layers, or of the unfused graph
    while there is no engine.

    `device`: the target's name; `target`: its fingerprint, for the key; `fit`: the digest of the
    fitted numbers, for the key; `planned` (node → precision) and `precision`: for an engine that is
    None or does not tell its layers' sizes.
    """

    name = "predict"
    version = 4
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: Input
    device: str = named("name")
    target: Mapping[str, object]
    fit: str
    axes: Mapping[str, int]
    batch: int
    engine: Engine | None
    planned: Mapping[str, str]
    precision: str
