"""A model for which a plan predicts: a graph of one call, or a decoder and what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optkit.craft.prediction import graph_work
from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.craft.prediction.work import Work
from optkit.facts.node_cost import NodeCost
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target

Quantized = Mapping[str, Precision] | None
"""Node → precision of what a build quantizes; None: it is not known, and every product with a
weight counts as quantized."""


def _unknown(target: str, number: str) -> Quantized:
    return None


@dataclass(frozen=True)
class OneCallModel:
    """A model of one call. `at`: batch → costs of its nodes; `live`: batch → bytes of activations
    alive at once. Bytes per sample: `passed`: of inputs and outputs; `inputs`: of inputs alone;
    `cached`: of outputs that are a decoder's caches. `quantized`: names of a target and a
    precision → what a build for them quantizes."""

    parameters: int
    at: Callable[[int], Mapping[str, NodeCost]]
    live: Callable[[int], int]
    passed: float
    inputs: float = 0.0
    cached: float = 0.0
    quantized: Callable[[str, str], Quantized] = _unknown

    def works(self, batch: int, target: Target, number: Precision) -> list[Work]:
        """Its kernels at that batch."""
        quantized = self.quantized(target.name, number.name)
        return graph_work.of_graph(self.at(batch), number, target, quantized)


@dataclass(frozen=True)
class Decoding:
    """A decoder, and what is asked of it. `positions`: tokens that it has positions for; `encoder`:
    what runs once per sequence before it, of which `parameters` are a part."""

    shape: DecoderShape
    parameters: float
    prompt: int
    new: int
    positions: int | None = None
    encoder: OneCallModel | None = None
