"""The metadata of finished ONNX files, and which of it a graph made from one does not keep."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.craft.sources.export_log import OnnxOrigin
from optkit.ground import graph
from optkit.road.packaging.stamp import stamp


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


NAMES = {0: "cat", 1: "dog"}
ORIGIN = OnnxOrigin(
    metadata={"names": str(NAMES), "stride": "32", "task": "detect", "date": "2026-11-29T07:36"},
    doc_string="my detector — très précis", domain="org.example", model_version=-3,
    graph_name="main_graph", graph_doc_string="the graph", graph_metadata={"a": "b", "c": ""},
)  # fmt: skip


def test_what_the_users_file_said_is_read_back(plain: Path, tmp_path: Path) -> None:
    stamped = stamp(plain, tmp_path / "stamped.onnx", "1.2.3", {"digest": "ab"}, ORIGIN)
    found, expected = onnx.load(stamped), onnx.load(plain)
    assert (found.doc_string, found.domain, found.model_version) == (
        ORIGIN.doc_string, ORIGIN.domain, ORIGIN.model_version,
    )  # fmt: skip
    graph = found.graph
    assert (graph.name, graph.doc_string) == (ORIGIN.graph_name, ORIGIN.graph_doc_string)
    assert {one.key: one.value for one in graph.metadata_props} == dict(ORIGIN.graph_metadata)
    for field in ("name", "doc_string", "metadata_props"):
        graph.ClearField(field)
        expected.graph.ClearField(field)
    assert graph == expected.graph
    assert stamped.read_bytes().count(b"main_graph") == 1  # one message of the graph
    session = onnxruntime.InferenceSession(str(stamped), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map  # as Ultralytics reads it
    assert ast.literal_eval(metadata["names"]) == NAMES
    assert (int(metadata["stride"]), metadata["task"]) == (32, "detect")
    assert session.get_modelmeta().version == ORIGIN.model_version


@given(st.builds(OnnxOrigin, metadata=st.dictionaries(st.text(), st.text()), doc_string=st.text(),
                 model_version=st.integers(-(2**63), 2**63 - 1), graph_doc_string=st.text(),
                 graph_metadata=st.dictionaries(st.text(), st.text())))  # fmt: skip
def test_any_text_and_number_is_kept(origin: OnnxOrigin) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.onnx"
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [], [])
        onnx.save(helper.make_model(graph), source)
        found = onnx.load(stamp(source, Path(folder) / "out.onnx", "1", {}, origin))
    assert {one.key: one.value for one in found.metadata_props} == dict(origin.metadata)
    assert {one.key: one.value for one in found.graph.metadata_props} == dict(origin.graph_metadata)
    assert found.doc_string == origin.doc_string and found.model_version == origin.model_version
    assert found.graph.doc_string == origin.graph_doc_string
