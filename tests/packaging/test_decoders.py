"""What other programs compute in another way, and which matrices are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.qdq.codes import same
from optkit.facts.errors import UsageError
from optkit.ground import graph
from optkit.road.packaging.decoders import (
    Architecture,
    RotaryParameters,
    caveats,
    check_others,
    parameters,
    quantized_input,
)  # fmt: skip
from tests.networks import network
from tests.packaging import tiny
from tests.packaging.coded import random_codes

LLAMA = Architecture(
    "llama", layers=1, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16,
    vocabulary=32, epsilon=1e-6, context=128, window=None, theta=1e4, rotation=RotaryParameters(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "window", "notes"),
    [
        ("int4", None, []),
        ("int4", 256, []),
        ("int4", 64, ["limited to 64 positions"]),
        ("int8", None, ["activations are not quantized"]),
        ("nf4", None, ["weights in nf4 are stored as floats"]),
        ("nvfp4", None, ["weights in nvfp4 are stored as floats", "activations are not quantized"]),
    ],
)
def test_notes_say_what_is_not_as_in_the_artifact(
    precision: str, window: int | None, notes: list[str], tmp_path: Path
) -> None:
    artifact = tiny.artifact(tmp_path, precision=precision)
    found = caveats(artifact, replace(LLAMA, window=window), "mlx-lm")
    assert len(found) == len(notes)
    assert all(note in each for note, each in zip(notes, found, strict=True))


def test_matrices_are_the_same_if_codes_and_scales_are() -> None:
    codes = random_codes(0, 4, 32, symmetric=True)
    shifted = replace(
        codes, codes=(codes.codes + 8).astype(np.uint8), zero_points=codes.zero_points + 8
    )
    assert same(codes, shifted) and same(codes.numbers(), codes.numbers().copy())
    assert not same(codes, replace(codes, scales=codes.scales * 2))
    assert not same(codes, codes.numbers())
    assert not same(codes.numbers(), codes.numbers().astype(np.float16))


def test_an_embedding_that_no_format_knows_comes_with_other_formats() -> None:
    """Its rows are those of two tables of floats."""
    model = network("""<ir_version: 10, opset_import: ["" : 21]>
    g (int64[N] ids, float[32,64] a, float[32,64] b) => (float[N,64] y) {
        ["model.embed_tokens/Gather"] r = Gather (a, ids)
        ["model.embed_tokens/Gather_1"] s = Gather (b, ids)
        [sum] y = Add (r, s)
    }""")
    with pytest.raises(UsageError, match="the form of its weight is not known") as refused:
        parameters(model, LLAMA)
    assert "huggingface, oci and slim" in str(refused.value.hint)


QUANTIZED = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,64] x, float[64,3] w) => (float[N,3] y, float[N,N] z)
    <float scale = {0.5}, uint8 zero = {130}> {
        [quantize] q = QuantizeLinear (x, scale, zero)
        [dequantize] d = DequantizeLinear (q, scale, zero)
        ["head/MatMul"] y = MatMul (d, w)
        [turned] t = Transpose (READ)
        ["attention/MatMul"] z = MatMul (x, t)
    }"""


def quantized(read: str) -> tuple[graph.Graph, dict[str, ir.Node]]:
    model = network(QUANTIZED.replace("READ", read))
    return model, {str(node.name): node for node in model.graph}


def test_the_scale_of_an_input_is_that_of_its_codes() -> None:
    model, nodes = quantized("x")
    found = quantized_input(nodes["head/MatMul"])
    assert found is not None
    assert (found.dtype, float(found.scale), found.zero_point) == ("uint8", 0.5, 130)
    assert quantized_input(nodes["attention/MatMul"]) is None
    check_others(model, {nodes["head/MatMul"]})


def test_codes_that_something_else_reads_are_refused_with_the_setting_against_it() -> None:
    model, nodes = quantized("d")
    with pytest.raises(UsageError, match="quantizes inputs of linear layers only") as refused:
        check_others(model, {nodes["head/MatMul"]})
    assert refused.value.where == "node 'turned'"
    assert "quantization: {nodes: {NAME: fp32}}" in str(refused.value.hint)
