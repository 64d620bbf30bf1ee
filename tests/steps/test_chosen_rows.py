"""Two graphs that take the best of nearly equal values are compared on the same choice."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground import graph
from optkit.road.steps.bodies.comparison import TOLERANCE, Feeds, difference
from optkit.road.steps.graph import RandomInputs
from tests.steps.test_steps import HEADER

FEEDS = Feeds(RandomInputs((InputSpec(TensorInfo("x", "float32", ("N", 32))),), {}))


def _saved(file: Path, slope: float, factor: float = 1.0, largest: int = 1) -> Path:
    """Rows by scores of 1 + slope · x, as a detector with two choices has them."""
    text = f"""g (float[N,32] x) => (float[N,4] y, float[N,4] v)
        <float slope = {{{slope}}}, float one = {{1.0}}, float factor = {{{factor}}},
         int64[1] many = {{8}}, int64[1] few = {{4}}> {{
        a = Mul (x, slope) s = Add (a, one) w = Mul (x, factor)
        t, i = TopK <axis = 1, largest = {largest}> (s, many)
        r = GatherElements <axis = 1> (w, i) q = GatherElements <axis = 1> (s, i)
        v, j = TopK <axis = 1, largest = {largest}> (q, few)
        y = GatherElements <axis = 1> (r, j) }}"""
    graph.save(graph.upgrade(ir.from_onnx_text(HEADER + text)), file)
    return file


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [
        ({"slope": 0.0}, {"slope": 2e-7}, True),  # rounding orders the rows
        ({"slope": 0.0}, {"slope": 2e-7, "factor": 1.01}, False),  # and the rows differ
        ({"slope": 0.1}, {"slope": -0.1}, False),  # the worst rows
        ({"slope": 0.1}, {"slope": 0.1, "largest": 0}, False),
    ],
)
def test_rows_are_compared_in_the_same_order(
    before: dict[str, float], after: dict[str, float], alike: bool, tmp_path: Path
) -> None:
    files = [
        _saved(tmp_path / f"{n}.onnx", **each)  # type: ignore[arg-type]
        for n, each in enumerate((before, after))
    ]
    name, error = difference(*files, FEEDS)
    assert (error <= TOLERANCE) is alike
    if not alike and "factor" in after:
        assert name == "y" and error == pytest.approx(0.01, rel=0.1)  # of the factor alone
