from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.card_facts import CardCorrection
from optkit.facts.engines import Engine
from optkit.facts.measurement import Latency
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput, StepResult, named


@dataclass(frozen=True, kw_only=True)
class PredictedLatency(StepResult):
    """`kind`: of the measured models that this one is like, which its intervals follow;
    `of_layers`: whether it is that of the layers of an engine."""

    latency: Latency
    kind: str
    of_layers: bool


@dataclass(frozen=True, kw_only=True)
class PredictLatency(Step[PredictedLatency]):
    """Latency from the fitted performance model: of the fused layers of an engine, or of the
    unfused graph if no engine is given.

    The graph is also used for recurrent cells, because engines list one turn of a loop.

    `device`: the name of the target; `target`: its fingerprint, for the key; `fit`: the digest of
    the fitted numbers, for the key; `planned` (node → precision) and `precision`: used if there is
    no engine, or if the engine does not list the sizes of its layers; `card`: what kernels change
    that were measured on this card.
    """

    name = "predict"
    version = 8
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: StepInput
    device: str = named("name")
    target: Mapping[str, object]
    fit: str
    axes: Mapping[str, int]
    batch: int
    engine: Engine | None
    planned: Mapping[str, Precision]
    precision: Precision
    card: CardCorrection | None = None
