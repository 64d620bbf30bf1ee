from __future__ import annotations

from dataclasses import dataclass

from optkit.assignment import Scheme
from optkit.execute.step import Input, Result, Step, spread
from optkit.steps.quantize import QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class NoisyNodes(Result):
    """`nodes`: names of those whose activation needs more than one scale for all of it. The noise
    at the outputs, relative to their power, of activations with one scale: `noise` of those that
    may have more, `others` of the rest; None: not measured."""

    nodes: tuple[str, ...] = ()
    noise: float | None = None
    others: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FindNoisyNodes(Step[NoisyNodes]):
    """Products whose activation needs more than one scale: where this leaves too much noise in the
    product, and so many more that little noise is left at the outputs of the model. The fields are
    as in `Quantize`."""

    name = "noisy_nodes"
    version = 1
    tools = ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes")
    stays = True

    graph: Input
    statistics: Input
    samples: Input
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
