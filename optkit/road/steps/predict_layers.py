from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.card_facts import CardCorrection
from optkit.facts.engines import FusedLayer
from optkit.ground.execute.step import Step, StepInput, named
from optkit.road.steps.attribute import AttributedTimes


@dataclass(frozen=True, kw_only=True)
class PredictLayers(Step[AttributedTimes]):
    """Predicted milliseconds of every layer of candidate and baseline, and the nodes of the
    candidate.

    `layers`: side → the layers that its compiler lists; `device`: the name of the target; `target`:
    its fingerprint, for the key; `fit`: the digest of the fitted numbers, for the key; `axes`:
    sizes of the named axes; `card`: as in `PredictLatency`.
    """

    name = "predict_layers"
    version = 3
    tools = ("onnx", "onnx-ir")
    stays = True

    candidate: StepInput
    baseline: StepInput
    layers: Mapping[str, tuple[FusedLayer, ...]]
    device: str = named("name")
    target: Mapping[str, object]
    fit: str
    axes: Mapping[str, int]
    card: CardCorrection | None = None
