"""Codes of few bits in bytes, and a build that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import optkit
from optkit.craft.quantization.qdq import nbits, weight_reader
from optkit.craft.quantization.qdq.codes import Codes
from optkit.facts import errors
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.workspace import Workspace

MATRICES = st.tuples(st.integers(1, 5), st.integers(1, 40))


@given(st.sampled_from((2, 4, 8)), st.data())
def test_codes_come_back(bits: int, data: st.DataObject) -> None:
    elements = st.integers(0, (1 << bits) - 1)
    rows, count = data.draw(MATRICES)
    codes = data.draw(hnp.arrays(np.uint8, (rows, count * (8 // bits)), elements=elements))
    held = nbits.pack_bits(codes, bits)
    assert held.dtype == np.uint8 and held.shape == (rows, count)
    np.testing.assert_array_equal(nbits.unpack(held, bits), codes)
    first = sum(int(code) << bits * i for i, code in enumerate(codes[0, : 8 // bits]))
    assert held[0, 0] == first


@given(st.sampled_from(("int2", "int4", "uint4", "int8")), st.sampled_from((16, 32)), st.data())
def test_a_weight_comes_back(dtype: str, block: int, data: st.DataObject) -> None:
    fmt = NumberFormat(dtype, "block", not dtype.startswith("u"), block_size=block)  # type: ignore[arg-type]
    elements = st.integers(fmt.qmin, fmt.qmax)
    n, k = data.draw(MATRICES)
    codes = data.draw(hnp.arrays(np.int16, (n, k), elements=elements))
    held = nbits.pack(codes, fmt, block)
    assert held.shape == (n, -(-k // block), block * fmt.bits // 8)
    shift = 0 if dtype.startswith("u") else 1 << fmt.bits - 1
    found = nbits.unpack(held.reshape(n, -1), fmt.bits).astype(np.int16) - shift
    np.testing.assert_array_equal(found[:, :k], codes)


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 80), nn.ReLU(), nn.Linear(80, 48), nn.Linear(48, 4)).eval()


def test_a_build_of_two_bits_computes_with_its_codes(mlp: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    workspace = Workspace(cache=tmp_path / "cache", listener=None)
    artifact = optkit.build(
        mlp, x[:2], target="cpu", precision="int2", calibration=list(x.split(8)), name="mlp",
        out=tmp_path / "out", workspace=workspace,
    )  # fmt: skip
    file = artifact.path / "model.onnx"
    products = [node for node in graph.load(file).graph if node.op_type == "MatMulNBits"]
    bits = [node.attributes["bits"].as_int() for node in products]
    assert bits == [2, 2, 8]  # the last layer has 8 bits
    assert {node.attributes["accuracy_level"].as_int() for node in products} == {4}
    assert [node.attributes["block_size"].as_int() for node in products[:2]] == [64, 64]
    y = x.numpy().astype(np.float64)
    for node in products:
        codes, (add,) = weight_reader.matrix(node), node.outputs[0].consumers()
        assert isinstance(codes, Codes)
        y = y @ codes.numbers().astype(np.float64).T + weight_reader.vector(add.inputs[1])
        y = np.maximum(y, 0) if node is products[0] else y
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        (found,) = session.run({session.inputs[0].name: x.numpy()}).values()
    assert np.abs(found - y).max() < 0.02 * np.abs(y).max()  # the kernel rounds activations
    with pytest.raises(errors.Impossible, match="has no kernels for int2") as caught:
        optkit.build(mlp, x[:2], target="l4", precision="int2", workspace=workspace)
    assert caught.value.exit_code == 5
