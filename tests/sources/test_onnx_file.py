"""An ONNX file as a source: converted, checked, its axes named as declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from optkit.craft.sources import onnx_file
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import InputRefused, OptkitError
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend

P2O, P2O_7 = "p2o.DynamicDimension.0", "p2o.DynamicDimension.7"
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(
    path: Path,
    opset: int = 17,
    shape: tuple[int | str | None, ...] = ("N", 4),
    weight: np.ndarray = WEIGHT,
) -> Path:
    """y = concat(x·W, x·W); two nodes have no name."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("ReduceSum", ["xw"], ["s"], keepdims=1, name="sum"),
        helper.make_node("Add", ["xw", "s"], ["t"]),
        helper.make_node("Concat", ["t", "t"], ["y"], axis=0, name="twice"),
    ]
    body = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(body, opset_imports=imports, ir_version=8), path)
    return path


def export(path: Path, out: Path, *specs: InputSpec) -> ExportLog:
    return onnx_file.export(path, specs, out)


def spec(*shape: int | str, name: str = "x", dtype: str = "float32") -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape))


@pytest.mark.parametrize(("opset", "converted"), [(13, 13), (17, 17), (21, None), (22, None)])
def test_old_opsets_are_converted_and_newer_ones_stay(
    opset: int, converted: int | None, tmp_path: Path
) -> None:
    log = export(write(tmp_path / "in.onnx", opset), tmp_path / "out.onnx")
    assert (log.converted_from, log.opset) == (converted, max(opset, 21))
    assert graph.load(tmp_path / "out.onnx").opset_imports[""] == log.opset
    names = [node.name for node in graph.load(tmp_path / "out.onnx").graph]
    assert all(names) and len(set(names)) == 4 and "twice" in names
    x = np.ones((2, 4), np.float32)
    with backend("onnxruntime").session(tmp_path / "out.onnx") as session:
        found = session.run({"x": x})["y"]
    expected = x @ WEIGHT + (x @ WEIGHT).sum()
    np.testing.assert_allclose(found, np.concatenate([expected, expected]), rtol=1e-6)


@pytest.mark.parametrize("shape", [("N", 4), (None, 4)])
def test_axes_get_the_declared_names(shape: tuple[int | str | None, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "in.onnx", shape=shape)
    log = export(path, tmp_path / "out.onnx", spec("batch", 4))
    assert log.inputs == (TensorInfo("x", "float32", ("batch", 4)),)


def test_a_declared_size_is_put_in(tmp_path: Path) -> None:
    log = export(write(tmp_path / "in.onnx"), tmp_path / "out.onnx", spec(3, 4))
    assert log.inputs[0].shape == (3, 4)
    assert log.outputs[0].shape == (6, 3)


def test_without_declared_inputs_the_graphs_own_stand(tmp_path: Path) -> None:
    log = export(write(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    assert log.inputs[0].shape == ("N", 4)


def test_first_axes_without_a_name_are_one_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "in.onnx", shape=(None, 4))
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (None, None)))
    onnx.save(model, path)
    log = export(path, tmp_path / "out.onnx")
    assert [info.shape for info in log.inputs] == [("batch", 4), ("batch", "z.1")]
    other = write(tmp_path / "other.onnx", shape=(None, "batch"))
    assert export(other, tmp_path / "out.onnx").inputs[0].shape == ("x.0", "batch")


@pytest.mark.parametrize(
    ("specs", "message", "hint"),
    [
        ((spec("batch", 4, name="X1"),), "no input 'X1'", "did you mean x"),
        ((spec("batch", 5),), "float32", "as the model has it"),
        ((spec("batch", 4, 1),), "float32", "as the model has it"),
        ((spec("batch", 4, dtype="int64"),), "declares int64", "as the model has it"),
        ((spec(3, "batch"),), "does not fit other sizes", "as the model has it"),
    ],
)
def test_inputs_that_differ_are_reported(
    specs: tuple[InputSpec, ...], message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match=message) as caught:
        export(write(tmp_path / "in.onnx"), tmp_path / "out.onnx", *specs)
    assert hint in str(caught.value.hint)


def test_weights_must_be_finite(tmp_path: Path) -> None:
    weight = np.where(WEIGHT == 3, np.inf, WEIGHT).astype(np.float32)
    with pytest.raises(InputRefused, match="NaN or infinite") as caught:
        export(write(tmp_path / "in.onnx", weight=weight), tmp_path / "out.onnx")
    assert "'w'" in str(caught.value.where)


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InputRefused):
        export(path, tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("declared", "told"), [((1,), "[1]"), (("N", 5), "[?, 5]"), (("N", 3), None)]
)
def test_a_wrong_shape_of_an_output_is_dropped(
    declared: tuple[int | str, ...], told: str | None, tmp_path: Path
) -> None:
    """ONNX Runtime runs such a file, and strict tools refuse it."""
    path = write(tmp_path / "in.onnx")
    model = onnx.load(path)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)
    model.graph.output[0].CopyFrom(y)
    onnx.save(model, path)
    log = export(path, tmp_path / "out.onnx", spec("batch", 4))
    found = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(found, full_check=True)
    shape = found.graph.output[0].type.tensor_type.shape.dim
    assert len(shape) == 2 and shape[1].dim_value == 3
    note = f"output 'y' is declared as {told}, and the graph computes [?, 3]"
    assert log.warnings == ((f"{note}: the declaration is dropped",) if told else ())


def test_a_graph_that_is_wrong_elsewhere_is_refused_as_before(tmp_path: Path) -> None:
    path = write(tmp_path / "in.onnx", shape=("N", 5))  # times a matrix of 4 rows
    with pytest.raises(InputRefused, match="shapes do not fit"):
        export(path, tmp_path / "out.onnx")


def test_placeholders_are_axes_of_any_size(tmp_path: Path) -> None:
    """PaddlePaddle's exporter writes -1 and "?"; two axes called "?" are not one."""
    path = write(tmp_path / "m.onnx", shape=("N", 4))
    model = onnx.load(path)
    first, second = model.graph.input[0].type.tensor_type.shape.dim
    first.dim_value, second.dim_param = -1, "?"
    onnx.save(model, path)
    assert export(path, tmp_path / "out.onnx").inputs[0].shape == ("batch", "x.1")


def with_inputs(path: Path, *shapes: tuple[int | str | None, ...]) -> Path:
    """y = x0 + … with a reduction of each input, so that inputs of any shapes fit together."""
    names = [f"x{index}" for index in range(len(shapes))]
    nodes = [
        helper.make_node("ReduceSum", [name, "axes"], [f"{name}s"], keepdims=0) for name in names
    ]
    nodes.append(helper.make_node("Sum", [f"{name}s" for name in names], ["y"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("p2o.DynamicDimension.9",))
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    body = helper.make_graph(nodes, "g", inputs, [output], [axes])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(body, opset_imports=imports, ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        # on axis 0 they are one batch
        ([("unk__1", "unk__2"), ("unk__3", "unk__4")], [("batch", "x0.1"), ("batch", "x1.1")]),
        (
            [(P2O_7, "?"), (P2O, -1)],
            [("p2o.DynamicDimension.7", "x0.1"), ("p2o.DynamicDimension.7", "x1.1")],
        ),
        ([(None, 4), (P2O, "w")], [(P2O, 4), (P2O, "w")]),
        ([("N", 4), (P2O, "unk__3")], [("N", 4), ("N", "x1.1")]),
        ([("a_dynamic_axes_1", 4), ("b_dynamic_axes_1", 4)], [("a_dynamic_axes_1", 4)] * 2),
        ([("batch", "floor(height/2)")], [("batch", "floor(height/2)")]),
        ([("batch", "a b:c.0")], [("batch", "a b:c.0")]),
        # the sizes of the parts of a sum are seen only where they stand alone
        ([("batch", "past + new"), ("batch", "new")], [("batch", "past_new"), ("batch", "new")]),
        ([("batch", "new + 1"), ("batch", "new")], [("batch", "new + 1"), ("batch", "new")]),
        # another first axis says nothing about the others
        ([(1, 4), (P2O, 4)], [(1, 4), (P2O, 4)]),
        ([("rows", 4), (P2O, 4)], [("rows", 4), (P2O, 4)]),
    ],
)
def test_axes_that_the_exporter_left_open(
    given: list[tuple[int | str | None, ...]], settled: list[tuple[int | str, ...]], tmp_path: Path
) -> None:
    log = export(with_inputs(tmp_path / "in.onnx", *given), tmp_path / "out.onnx")
    assert [info.shape for info in log.inputs] == settled


def test_numbered_axes_of_outputs_are_inferred(tmp_path: Path) -> None:
    path = with_inputs(tmp_path / "in.onnx", (P2O, 4), ("p2o.DynamicDimension.3", 4))
    log = export(path, tmp_path / "out.onnx")
    assert log.outputs[0].shape == (P2O,)
    declared = (spec("rows", 4, name="x0"), spec("rows", 4, name="x1"))
    assert export(path, tmp_path / "out.onnx", *declared).outputs[0].shape == ("rows",)


def _picture(path: Path, *, flat: bool) -> Path:
    """A convolution and a pool at [1, 3, 8, 8]. `flat`: behind a Reshape that holds the size."""
    middle = [helper.make_node("Relu", ["c"], ["r"])]
    if flat:
        middle = [helper.make_node("Reshape", ["c", "size"], ["r"], name="to the size")]
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
            *middle,
            helper.make_node("GlobalAveragePool", ["r"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 1, 1])],
        [
            numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.array([1, 2, 4, 4]), "size"),
        ],
    )
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(body, opset_imports=imports, ir_version=8), path)
    return path


def test_an_axis_that_the_recipe_names_is_opened(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    log = export(
        _picture(tmp_path / "in.onnx", flat=False), out, spec("batch", 3, "height", "width")
    )
    assert log.inputs[0].shape == ("batch", 3, "height", "width")
    assert log.outputs[0].shape[0] == "batch"
    assert "[1, 3, 8, 8] in the file" in log.warnings[0]
    x = np.random.default_rng(0).standard_normal((3, 3, 20, 12)).astype(np.float32)
    with backend("onnxruntime").session(out) as session:
        (found,) = session.run({"x": x}).values()
    ones = torch.ones(2, 3, 3, 3)
    features = functional.conv2d(torch.from_numpy(x), ones, stride=2, padding=1).relu()
    np.testing.assert_allclose(found, features.mean((2, 3), keepdim=True), rtol=1e-5)


def test_a_graph_that_holds_its_size_fails_at_another_one(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    export(_picture(tmp_path / "in.onnx", flat=True), out, spec(1, 3, "height", "width"))
    x = np.zeros((1, 3, 20, 12), np.float32)
    with (
        backend("onnxruntime").session(out) as session,
        pytest.raises(OptkitError, match="to the size"),
    ):
        session.run({"x": x})


def test_a_loop_that_returns_a_constant_is_kept(tmp_path: Path) -> None:
    """y = x · W, and three times 2 y."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["two"], value_float=2.0),
         helper.make_node("Mul", ["a", "two"], ["b"]),
         helper.make_node("Constant", [], ["go"], value=numpy_helper.from_array(np.array(True)))],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []),
         value("a", TensorProto.FLOAT, ["N", 4])],
        [value("go", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, ["N", 4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Loop", ["times", "", "xw"], ["y"], body=body),
    ]
    constants = {"w": np.eye(4, dtype=np.float32), "times": np.array(3)}
    made = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=8), tmp_path / "in.onnx")
    export(tmp_path / "in.onnx", tmp_path / "out.onnx")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with backend("onnxruntime").session(tmp_path / "out.onnx") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], 8 * x)
