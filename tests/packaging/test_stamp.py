"""The metadata of finished ONNX files, and which of it a graph made from one does not keep."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from optkit import graph
from optkit.packaging.stamp import stamp


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    other = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    made = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="n")], "g", [value], [other]
    )
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(made, opset_imports=opset, ir_version=10, producer_name="somebody")
    helper.set_model_props(model, {"optkit.in_place": "[]"})
    onnx.save(model, tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


def test_a_stamp_is_read_by_onnx_and_onnx_runtime(plain: Path, tmp_path: Path) -> None:
    known = '{"pictures": {"mean": 0.5}}'
    about = {
        "digest": "ab" * 150, "optimization_level": "basic", "instruction_set": None,
        "preprocessing": known,
    }  # fmt: skip
    stamped = stamp(plain, tmp_path / "stamped.onnx", "1.2.3", about)
    expected = onnx.load(plain)
    found = onnx.load(stamped)
    onnx.checker.check_model(found, full_check=True)
    assert found.graph == expected.graph
    wanted = {
        "optkit.in_place": "[]",
        "optkit.build.digest": "ab" * 150,
        "optkit.build.optimization_level": "basic",
        "optkit.build.preprocessing": known,
    }
    assert {prop.key: prop.value for prop in found.metadata_props} == wanted
    session = onnxruntime.InferenceSession(str(stamped), providers=["CPUExecutionProvider"])
    meta = session.get_modelmeta()
    assert meta.producer_name == found.producer_name == "optkit"
    assert found.producer_version == "1.2.3"
    assert meta.custom_metadata_map == wanted


def test_a_graph_made_of_a_stamped_one_is_another(plain: Path, tmp_path: Path) -> None:
    stamped = stamp(plain, tmp_path / "stamped.onnx", "1.2.3", {"digest": "ab"})
    graph.save(graph.load(stamped), tmp_path / "again.onnx")
    graph.save(graph.load(plain), tmp_path / "first.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()
