"""Landing is counted in ONNX nodes, from the layer that multiplies each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optkit.craft.backends import landing as landings
from optkit.craft.backends.landing import products
from optkit.facts.engines import FusedLayer, Landing, LayerTensor
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph


def layer(name: str, nodes: tuple[str, ...], dtype: str) -> FusedLayer:
    return FusedLayer(name, "gemm", (), (), (), nodes, nodes, dtype)


def landing(layers: Any, nodes: Any, planned: dict[str, str]) -> Landing:
    schemes = {node: PRECISIONS[name] for node, name in planned.items()}
    return landings.landing(layers, nodes, schemes)


def test_counts_and_rows(net: Any, tmp_path: Path) -> None:
    build = net(carrier="float32")
    x = build.quantized("x")
    y = build.node("Add", [build.matmul(x, n, 8, 8) for n in ("a", "b")], "sum")
    y = build.node("MatMul", [y, y], "square")
    y = build.matmul(y, "c", 8, 8)
    model = graph.load(build.write(tmp_path / "m.onnx", y, (8, 8), (8, 8)))

    layers = [layer("a+b", ("a", "b"), "int8"), layer("squared", ("square",), "float16")]
    found = landing(layers, products(model), {"a": "int8", "b": "int8", "c": "int8"})

    assert (found.planned, found.landed) == (3, 2)
    assert found.by_dtype == {"int8": 2, "unknown": 1}
    assert [(r.node, r.landed, r.dtype, r.layer) for r in found.rows] == [
        ("a", True, "int8", "a+b"),
        ("b", True, "int8", "a+b"),
        ("c", False, None, None),
    ]
    assert [(r.node, r.dtype) for r in found.activations] == [("square", "float16")]


def test_what_a_compiler_does_not_tell_is_neither_landed_nor_missed(
    net: Any, tmp_path: Path
) -> None:
    build = net(carrier="float32")
    y = build.matmul(build.quantized("x"), "a", 8, 8)
    nodes = products(graph.load(build.write(tmp_path / "m.onnx", y, (1, 8), (1, 8))))
    inside = FusedLayer("{ForeignNode[a]}", "Myelin", (), (), (), ("a",), ("a",))
    for layers, name in (([inside], inside.name), (None, None)):
        found = landing(layers, nodes, {"a": "int8"})
        assert (found.planned, found.landed, found.unknown) == (1, 0, 1)
        assert found.by_dtype == {"unknown": 1}
        (row,) = found.rows
        assert (row.landed, row.dtype, row.layer) == (None, None, name)
        assert "does not tell" in (row.note or "")


def test_unsigned_activations_land_in_int8_and_floats_do_not(net: Any, tmp_path: Path) -> None:
    build = net(carrier="float32")
    y = build.matmul(build.quantized("x"), "a", 8, 8)
    nodes = products(graph.load(build.write(tmp_path / "m.onnx", y, (1, 8), (1, 8))))
    assert landing([layer("a", ("a",), "uint8")], nodes, {"a": "int8"}).landed == 1
    assert landing([layer("a", ("a",), "float16")], nodes, {"a": "int8"}).landed == 0
    assert landing([layer("a", ("a",), "int8")], nodes, {}).planned == 0


@pytest.mark.parametrize(
    ("planned", "dtype", "weight", "landed", "told"),
    [
        ("int4", "float16", "int4", True, "int4"),
        ("int4", "float16", "float16", False, "float16"),
        ("int4", "int8", "int4", True, "int4"),  # the kernel rounds activations itself
        ("int8-weight-only", "float16", "int8", True, "int8"),
        ("int8", "float16", "int8", False, "float16"),  # read in 8 bits, multiplied in floats
        ("fp8", "float8e4m3fn", "float8e4m3fn", True, "float8e4m3fn"),
        ("fp8", "int8", "int8", False, "int8"),
        ("nvfp4", "float4e2m1", "float4e2m1", True, "float4e2m1"),
        ("nf4", "float32", "nf4", True, "nf4"),
        ("nf4", "float32", "int4", False, "int4"),
    ],
)
def test_weights_alone_land_by_the_dtype_that_is_read(
    planned: str, dtype: str, weight: str, landed: bool, told: str, net: Any, tmp_path: Path
) -> None:
    build = net(carrier="float32")
    nodes = products(
        graph.load(build.write(tmp_path / "m.onnx", build.matmul("x", "a", 8, 8), (1, 8), (1, 8)))
    )
    one = replace(layer("a", ("a",), dtype), weight_dtype=weight)
    (row,) = landing([one], nodes, {"a": planned}).rows
    assert (row.landed, row.dtype, row.note) == (landed, told, None)


def test_a_weight_dequantized_by_a_kernel_of_its_own_is_reported(net: Any, tmp_path: Path) -> None:
    build = net(carrier="float32")
    model = build.write(tmp_path / "m.onnx", build.matmul("x", "a", 8, 8), (1, 8), (1, 8))
    codes, floats = LayerTensor("c", (8, 8), "int4"), LayerTensor("w", (8, 8), "float16")
    maker = FusedLayer("unpack", "kgen", (), (codes,), (floats,), ("dq",))
    x = LayerTensor("x", (1, 8), "float16")
    product = FusedLayer("a", "gemm", (x, floats), (), (x,), ("a",), ("a",), "float16")
    found = landing([maker, product], products(graph.load(model)), {"a": "int4"})
    assert found.landed == 0 and found.by_dtype == {"float16": 1}
    assert found.rows[0].note == "dequantized by a kernel of its own"
