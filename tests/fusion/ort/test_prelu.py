"""PRelu as the larger of two values: bit by bit the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

RNG = np.random.default_rng(43)
FLOATS = st.floats(-1e6, 1e6, width=32)
SLOPES = st.floats(-4, 1, width=32).filter(lambda one: one != 0)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    x=arrays(np.float32, (2, 3, 2, 2), elements=FLOATS),
    slope=arrays(np.float32, (3, 1, 1), elements=SLOPES),
)
def test_it_is_the_larger_of_two(as_ort, build, x, slope) -> None:
    model = build("float[b, 3, 2, 2] x", "float[b, 3, 2, 2] y", "y = PRelu(x, s)", s=slope)
    after, log = as_ort(model, {"x": x}, rtol=0, atol=0)
    assert log.counts == {"prelu": 1}
    assert [node.op_type for node in after.graph] == ["Mul", "Max"]


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_other_slopes_are_left(as_ort, build, slope) -> None:
    slopes = np.array([0.25, slope, -0.5], np.float32).reshape(3, 1, 1)
    model = build("float[b, 3, 2, 2] x", "float[b, 3, 2, 2] y", "y = PRelu(x, s)", s=slopes)
    x = RNG.standard_normal((2, 3, 2, 2)).astype(np.float32)
    after, log = as_ort(model, {"x": x}, rtol=0, atol=0)
    assert log.counts == {} and [node.op_type for node in after.graph] == ["PRelu"]


def test_slopes_that_are_computed_are_left(as_ort, build) -> None:
    model = build("float[b, 3] x, float[3] s", "float[b, 3] y", "y = PRelu(x, s)")
    feed = {"x": RNG.standard_normal((2, 3)).astype(np.float32), "s": np.ones(3, np.float32)}
    _, log = as_ort(model, feed)
    assert log.counts == {}
