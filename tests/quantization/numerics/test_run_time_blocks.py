"""Activations in blocks of 8 bits, against a loop and against ONNX Runtime's kernel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.numerics import run_time_blocks
from optkit.craft.quantization.qdq import nbits
from optkit.facts import precisions
from optkit.facts.precisions import NumberFormat
from tests.networks import network
from tests.quantization.workshop import Workshop

W4 = NumberFormat("int4", "block", symmetric=True, block_size=16)


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=19, max_size=19), min_size=1, max_size=3
    )
)
def test_each_block_of_a_row_has_its_own_scale(rows: list[list[float]]) -> None:
    x = np.array(rows, np.float32)
    found = run_time_blocks.rounded(x, precisions.run_time_blocks(W4.block_size))
    assert found.dtype == np.float32
    for row, held in zip(x, found, strict=True):
        for start, stop in ((0, 16), (16, 19)):
            step = max(abs(float(number)) for number in row[start:stop]) / 127
            for number, rounded in zip(row[start:stop], held[start:stop], strict=True):
                assert abs(float(number) - float(rounded)) <= step * 0.501 + 1e-36  # subnormal
                codes = float(rounded) / step if step > 1e-30 else 0.0
                assert abs(codes - round(codes)) < 1e-3 and abs(round(codes)) <= 127


def test_only_integers_in_blocks_are_rounded_at_run_time() -> None:
    assert run_time_blocks.is_rounded(precisions.run_time_blocks(W4.block_size))
    assert not run_time_blocks.is_rounded(None)
    assert not run_time_blocks.is_rounded(NumberFormat("uint8", "tensor", symmetric=False))
    assert not run_time_blocks.is_rounded(
        NumberFormat("float4e2m1", "block", symmetric=True, block_size=16)
    )


@pytest.mark.parametrize("block", [32, 64])
def test_it_is_what_the_kernel_multiplies(block: int, workshop: Workshop) -> None:
    """A row with an outlier, times a weight whose numbers 4-bit codes hold exactly."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-7, 8, (128, 24)).astype(np.int8)
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=block)
    model = network('<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
                    "g (float[N,128] x, float[128,24] w) => (float[N,24] y) {"
                    "y = MatMul (x, w) }")  # fmt: skip
    (node,) = model.graph
    values = []
    for name, numbers in (
        ("b", nbits.pack(codes.T, fmt, block)),
        ("s", np.ones((24, 128 // block), np.float32)),
    ):
        value = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
        model.graph.register_initializer(value)
        values.append(value)
    node.resize_inputs(3)
    for index, value in enumerate(values, 1):
        node.replace_input_with(index, value)
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"
    for key, number in nbits.attributes(24, 128, 4, block, 4).items():
        node.attributes.add(ir.AttrInt64(key, number))
    x = rng.standard_normal((6, 128)).astype(np.float32)
    x[2, 40] = 1e4
    found = workshop.run(model, {"x": x})["y"]
    rounded = run_time_blocks.rounded(x, precisions.run_time_blocks(fmt.block_size))
    expected = rounded.astype(np.float64) @ codes
    exact = x.astype(np.float64) @ codes
    size = np.abs(exact).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) / size).max() < 1e-5
    assert (np.abs(found - exact) / size).max() > 1e-4
