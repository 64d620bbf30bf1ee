"""What was packed into a graph is read from it again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.numerics.format_codes import NF4
from optkit.craft.quantization.qdq import nbits, weight_reader
from optkit.craft.quantization.qdq.codes import Codes
from optkit.facts.errors import UsageError
from optkit.facts.precisions import NumberFormat

N, K, BLOCK = 3, 40, 16  # the last block is not full


def node(op: str, inputs: list[np.ndarray], attributes: dict[str, int]) -> ir.Node:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    constants = [
        ir.Value(name=f"c{number}", const_value=ir.tensor(array))
        for number, array in enumerate(inputs)
    ]
    return ir.node(op, [x, *constants], attributes, domain="com.microsoft")


@pytest.mark.parametrize(
    ("bits", "signed"), [(2, True), (4, True), (4, False), (8, True), (8, False)]
)
def test_codes_in_blocks(bits: int, signed: bool) -> None:
    rng = np.random.default_rng(bits)
    fmt = NumberFormat(f"{'' if signed else 'u'}int{bits}", "block", symmetric=signed)
    codes = rng.integers(fmt.qmin, fmt.qmax + 1, (N, K)).astype(np.int8 if signed else np.uint8)
    scales = rng.uniform(0.01, 1, (N, 3)).astype(np.float32)
    zeros = rng.integers(1, 1 << bits, (N, 3)).astype(np.uint8)
    inputs = [nbits.pack(codes, fmt, BLOCK), scales]
    if not signed:
        inputs.append(nbits.pack_zero_points(zeros, fmt))
    product = node("MatMulNBits", inputs, nbits.attributes(N, K, bits, BLOCK, 0))
    centred = codes.astype(np.float32)
    if not signed:
        centred -= np.repeat(zeros, BLOCK, 1)[:, :K]
    np.testing.assert_array_equal(weight_reader.grid_numbers(product), centred)
    matrix = weight_reader.matrix(product)
    assert isinstance(matrix, Codes) and (matrix.block, matrix.bits) == (BLOCK, bits)
    np.testing.assert_array_equal(matrix.numbers(), centred * np.repeat(scales, BLOCK, 1)[:, :K])


def test_table_entries_whose_blocks_do_not_end_with_a_row() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    scales = rng.uniform(0.01, 1, -(-N * K // BLOCK)).astype(np.float32)
    attributes = {"K": K, "N": N, "block_size": BLOCK, "quant_type": 1}
    product = node("MatMulBnb4", [nbits.pack_bnb4(codes), scales], attributes)
    expected = NF4[codes.reshape(-1)] * np.repeat(scales, BLOCK)[: N * K]
    np.testing.assert_array_equal(weight_reader.matrix(product), expected.reshape(N, K))


def test_another_width_is_refused() -> None:
    packed = np.zeros((N, 3, 6), np.uint8)
    attributes = nbits.attributes(N, K, 3, BLOCK, 0)
    product = node("MatMulNBits", [packed, np.ones((N, 3), np.float32)], attributes)
    with pytest.raises(UsageError, match="its codes have 3 bits"):
        weight_reader.matrix(product)
