"""How much time a quantization takes: what its effort changes in the codes, and in calibration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.numerics.qparams import WeightQParams
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.read_weight import matrix
from optkit.craft.quantization.qdq.insertion import taps
from optkit.facts.assignment import Scheme
from optkit.facts.precisions import PRECISIONS, precision
from optkit.ground.recipe import Quantization
from optkit.ground.recipe.sections import Effort
from optkit.ground.statistics import Statistics
from optkit.road.pipeline.quantization import _sums_moments
from tests.networks import NETWORKS, network
from tests.quantization.workshop import RULES, Workshop


def chosen(
    model: ir.Model, workshop: Workshop, **settings: Any
) -> tuple[dict[str, WeightQParams], Statistics]:
    """Node → its weight in INT8, from statistics without second moments."""
    rules = {PRECISIONS["int8"]: RULES["cpu"]}
    assignment = assign(model, Scheme(PRECISIONS["int8"], "fp32", rules))
    statistics = workshop.statistics(model, taps(model, assignment, rules))
    found = choose_qparams(
        model, assignment, statistics, rules, Quantization(**settings),
        method="minmax", percentile=100.0, carrier=np.float32,
    )  # fmt: skip
    return found.weights, statistics


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_fast_rounds_to_nearest_and_balanced_learns_from_sampled_rows(
    name: str, workshop: Workshop
) -> None:
    model = network(NETWORKS[name])
    fast, statistics = chosen(model, workshop, effort="fast")
    nearest, balanced, named = (
        chosen(model, workshop, **settings)[0]
        for settings in ({"weights": "rtn"}, {}, {"effort": "fast", "weights": "gptq"})
    )
    nodes = {str(node.name): node for node in model.graph}
    assert fast and fast.keys() == balanced.keys()
    for node, weight in fast.items():
        assert (weight.codes == nearest[node].codes).all(), node
        assert (weight.codes != named[node].codes).any(), node  # a method that is named is used
        assert (weight.codes != balanced[node].codes).any(), node
        if nodes[node].op_type == "MatMul":
            rows = statistics.value(str(nodes[node].inputs[0].name)).rows
            assert rows is not None
            lost = [_lost(rows.data, matrix(nodes[node]), one[node]) for one in (balanced, fast)]
            assert lost[0] < 0.9 * lost[1], node


def _lost(x: np.ndarray, w: np.ndarray, found: WeightQParams) -> float:
    """The power of the error that the codes cause in the product x w."""
    return float(np.square(x @ (w - found.floats())).sum())


@pytest.mark.parametrize(
    ("effort", "weights", "scheme", "summed"),
    [
        ("balanced", "auto", "int8", False),
        ("balanced", "auto", "fp8", False),
        ("balanced", "gptq", "int8", False),
        ("best", "auto", "int8", True),
        ("balanced", "auto", "int4", True),
        ("balanced", "auto", "nvfp4", True),
        ("fast", "auto", "int4", False),
        ("fast", "gptq", "int4", True),
        ("fast", "gptaq", "int4", True),
        ("best", "awq", "int4", False),
    ],
)
def test_second_moments_are_summed_where_they_pay(
    effort: Effort, weights: Any, scheme: str, summed: bool
) -> None:
    recipe = SimpleNamespace(quantization=Quantization(effort=effort, weights=weights))
    job: Any = SimpleNamespace(recipe=recipe, quantized=(precision(scheme),))
    assert _sums_moments(job) is summed


@pytest.mark.parametrize(
    ("effort", "weights", "compensates"),
    [
        ("balanced", "auto", False),
        ("best", "auto", True),
        ("best", "gptq", False),
        ("fast", "gptaq", True),
    ],
)
def test_errors_of_the_layers_before_count_with_the_best_effort(
    effort: Effort, weights: Any, compensates: bool
) -> None:
    assert Quantization(effort=effort, weights=weights).compensates is compensates
