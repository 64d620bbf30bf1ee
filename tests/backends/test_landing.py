"""Landing is counted in ONNX nodes, from the layer that multiplies each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit import graph
from optkit.backends.landing import landing, products
from optkit.runtime import FusedLayer


def layer(name: str, nodes: tuple[str, ...], dtype: str) -> FusedLayer:
    return FusedLayer(name, "gemm", (), (), (), nodes, nodes, dtype)


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


def test_unsigned_activations_land_in_int8_and_floats_do_not(net: Any, tmp_path: Path) -> None:
    build = net(carrier="float32")
    y = build.matmul(build.quantized("x"), "a", 8, 8)
    nodes = products(graph.load(build.write(tmp_path / "m.onnx", y, (1, 8), (1, 8))))
    assert landing([layer("a", ("a",), "uint8")], nodes, {"a": "int8"}).landed == 1
    assert landing([layer("a", ("a",), "float16")], nodes, {"a": "int8"}).landed == 0
    assert landing([layer("a", ("a",), "int8")], nodes, {}).planned == 0
