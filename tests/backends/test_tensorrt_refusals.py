"""What TensorRT says when it refuses a graph, as errors with a remedy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import parser

from optkit.craft.backends.tensorrt_refusals import parse, refused_build
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.errors import InputRefused


def test_a_failed_check_inside_the_compiler_has_a_remedy() -> None:
    spec: Any = SimpleNamespace(target="l4")
    check = "convolution_common.cpp:27: CHECK(nbdims_bias == 4 || nbdims_bias == 5) failed"
    error = refused_build("TensorRT-RTX", spec, [f"MyelinCheckException: {check}"])
    assert isinstance(error, InputRefused) and error.where == "TensorRT-RTX for l4"
    assert check in error.message and "fault" in error.message
    assert "-t cpu" in str(error.hint) and "-p fp16" in str(error.hint)


class Reader:
    """A parser that fails at ReduceMax, and does not say where."""

    num_errors = 1

    def parse_from_file(self, path: str) -> bool:
        return all(node.op_type != "ReduceMax" for node in onnx.load(path).graph.node)

    def get_error(self, index: int) -> Any:
        return SimpleNamespace(
            node_operator=lambda: "", node_name=lambda: "", desc=lambda: "Axis must be in the range"
        )


def test_a_problem_without_a_node_is_looked_for(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7 names no node where an assertion about axes fails."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2,3] x) => (float[1,1] y, float[2,3] z) {
            a = Relu (x)
            z = Sqrt (a)
            b = Exp (a)
            c = ReduceMax (b)
            y = Neg (c) }"""
    )
    for index, node in enumerate(model.graph.node):
        node.name = f"/part/{index}"
    onnx.save(model, tmp_path / "m.onnx")
    reader, network = Reader(), SimpleNamespace(num_outputs=1)
    with pytest.raises(InputRefused, match="cannot read this node: Axis must be") as caught:
        parse(reader, network, tmp_path / "m.onnx", "TensorRT", lambda: (network, Reader()))  # type: ignore[arg-type, return-value]
    assert caught.value.where == "node '/part/3' (ReduceMax)"


def test_suppression_is_refused_before_the_build_with_its_node(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7 parses it, and its builder stops with "Assertion !layerImpls.empty()"."""
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,20,4] boxes, float[1,2,20] scores) => (int64[n,3] y) {
            most = Constant <value_int = 3> ()
            half = Constant <value_float = 0.5> ()
            y = NonMaxSuppression (boxes, scores, most, half, half) }"""
    )
    model.graph.node[-1].name = "/head/nms.1"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InputRefused, match="no operator NonMaxSuppression") as caught:
        TensorRTRTX().accept(tmp_path / "m.onnx")
    assert caught.value.where == "node '/head/nms.1' (NonMaxSuppression)"
    assert "behind the model" in str(caught.value.hint)
