"""How much time a quantization takes: what its effort changes in the codes, and in calibration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.assignment import Scheme
from optkit.pipeline.quantization import _sums_moments
from optkit.precisions import precision
from optkit.quantization.choose_qparams import choose_qparams
from optkit.quantization.placement.assign import assign
from optkit.quantization.qdq.apply import taps
from optkit.recipe import Quantization
from optkit.recipe.schema import Effort
from tests.networks import NETWORKS, network
from tests.quantization.workshop import RULES, Workshop


def codes(
    model: ir.Model, workshop: Workshop, *, moments: bool = False, **settings: Any
) -> dict[str, np.ndarray]:
    """Node → codes of its weight in INT8."""
    rules = {"int8": RULES["cpu"]}
    assignment = assign(model, Scheme("int8", "fp32", rules))
    statistics = workshop.statistics(model, taps(model, assignment, rules, moments=moments))
    found = choose_qparams(
        model, assignment, statistics, rules, Quantization(**settings),
        method="minmax", percentile=100.0, carrier=np.float32,
    )  # fmt: skip
    return {name: weight.codes for name, weight in found.weights.items()}


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_fast_rounds_to_nearest_and_balanced_learns_from_sampled_rows(
    name: str, workshop: Workshop
) -> None:
    model = network(NETWORKS[name])
    fast, nearest, balanced, named = (
        codes(model, workshop, **settings)
        for settings in (
            {"effort": "fast"},
            {"weights": "rtn"},
            {},
            {"effort": "fast", "weights": "gptq"},
        )
    )
    assert fast and fast.keys() == balanced.keys()
    for node, of_node in fast.items():
        assert (of_node == nearest[node]).all(), node
        assert (of_node != named[node]).any(), node  # a method that is named is used
        step = np.abs(balanced[node].astype(int) - of_node.astype(int))
        assert step.any() and step.max() <= 3, node


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
        ("best", "awq", "int4", False),
    ],
)
def test_second_moments_are_summed_where_they_pay(
    effort: Effort, weights: Any, scheme: str, summed: bool
) -> None:
    recipe = SimpleNamespace(quantization=Quantization(effort=effort, weights=weights))
    job: Any = SimpleNamespace(recipe=recipe, quantized=(precision(scheme),))
    assert _sums_moments(job) is summed
