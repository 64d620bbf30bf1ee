"""The graph: files in and out, opset conversion, static shapes, taps, costs, refusals."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from optkit.facts.errors import InputRefused, OptkitError, UnsafeFile
from optkit.facts.node_cost import GraphPrecision, Recurrence
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from tests.networks import network

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((16, 3, 3, 3)).astype(np.float32)
HEAD = RNG.standard_normal((16, 5)).astype(np.float32)


def classifier(opset: int = 21, weight: np.ndarray = WEIGHT) -> onnx.ModelProto:
    """image [batch, 3, H, W] → Conv → Relu → global mean → MatMul → logits [batch, 5]."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu", doc_string="from line 3"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"], "pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], "flat"),
        helper.make_node("MatMul", ["flat", "head"], ["logits"], "head_mm"),
    ]
    proto = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(HEAD, "head")],
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    model.producer_name = "exporter"
    return model


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.fixture
def model() -> ir.Model:
    return graph.upgrade(ir.from_proto(classifier()))


@pytest.fixture
def image() -> np.ndarray:
    return RNG.standard_normal((2, 3, 16, 12)).astype(np.float32)


# files


def test_save_is_deterministic_and_forgets_the_exporter(model: ir.Model, tmp_path: Path) -> None:
    graph.save(model, tmp_path / "a.onnx")
    model.producer_name = "another exporter"
    model.graph[0].doc_string = "elsewhere"
    model.graph[1].outputs[0].metadata_props["trace"] = "line 9"
    graph.save(model, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert b"exporter" not in (tmp_path / "b.onnx").read_bytes()
    assert model.producer_name == "another exporter"  # saving does not touch the model


@pytest.mark.parametrize("inline_limit", [1 << 30, 0], ids=["inline", "external"])
def test_saved_model_computes_the_same(
    model: ir.Model, image: np.ndarray, tmp_path: Path, inline_limit: int
) -> None:
    graph.save(model, tmp_path / "m.onnx", inline_limit=inline_limit)
    assert (tmp_path / "m.onnx.data").exists() == (inline_limit == 0)
    graph.check(tmp_path / "m.onnx")
    loaded = graph.load(tmp_path / "m.onnx")
    for tensor in loaded.graph.initializers.values():
        tensor.const_value = ir.Tensor(tensor.const_value.numpy())
    np.testing.assert_array_equal(
        run(loaded, {"image": image})["logits"], run(model, {"image": image})["logits"]
    )


def test_external_weights_become_inline_when_saved_elsewhere(
    model: ir.Model, tmp_path: Path
) -> None:
    graph.save(model, tmp_path / "big.onnx", inline_limit=0)
    graph.save(graph.load(tmp_path / "big.onnx"), tmp_path / "small.onnx")
    (tmp_path / "big.onnx.data").unlink()
    kept = graph.load(tmp_path / "small.onnx").graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(kept, WEIGHT)


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"\x08\x0a"])
def test_load_refuses_what_is_not_a_model(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputRefused) as refused:
        graph.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link", "absent", "", "short"])
def test_load_refuses_external_data_outside_its_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "short").write_bytes(b"123")
    proto = classifier()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(WEIGHT.nbytes))):
        tensor.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UnsafeFile) as refused:
        graph.load(folder / "m.onnx")
    assert "'w'" in str(refused.value)


def test_check_refuses_a_node_name_used_twice(tmp_path: Path) -> None:
    proto = classifier()
    proto.graph.node[1].name = "conv"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputRefused, match="used twice"):
        graph.check(path)
    repaired = graph.load(path)
    graph.ensure_names(repaired)
    graph.save(repaired, path)
    graph.check(path)
    assert [n.name for n in repaired.graph][:2] == ["conv", "conv_1"]


def test_check_refuses_a_wrong_shape(tmp_path: Path) -> None:
    proto = classifier(weight=np.zeros((8, 3, 3, 3), np.float32))  # the head wants 16
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputRefused):
        graph.check(path)


# conversion and shapes


@pytest.mark.parametrize("opset", [11, 13, 18, 21, 23])
def test_upgrade_keeps_function_names_and_weights(opset: int, image: np.ndarray) -> None:
    proto = classifier(opset)
    before = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"image": image})[0]
    model = graph.upgrade(ir.from_proto(proto))
    assert model.opset_imports[""] == max(21, opset)
    assert [n.name for n in model.graph] == ["conv", "relu", "pool", "flat", "head_mm"]
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), WEIGHT)
    np.testing.assert_array_equal(run(model, {"image": image})["logits"], before)


def test_upgrade_says_why_it_cannot() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 3, opset_import: ["" : 9]> g (float[2, 2] x) => (float[2, 2] y)'
        "{ y = Nope(x) }"
    )
    with pytest.raises(InputRefused, match=r"opset 9 cannot be converted to 21: .*Nope"):
        graph.upgrade(model)


def test_upgrade_inlines_functions_and_lifts_constants() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[n, 4] x) => (float[n, 4] y) { y = local.shifted(x) }
        <domain: "local", opset_import: ["" : 21]> shifted (a) => (b) {
            c = Constant<value_float = 2.5>()
            b = Add(a, c)
        }""")
    model = graph.upgrade(model)
    assert [node.op_type for node in model.graph] == ["Add"]
    assert not model.functions
    assert model.graph[0].name
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(model, {"x": x})["y"], x + np.float32(2.5))


@pytest.mark.parametrize("opset", [9, 21])
def test_initializers_listed_as_inputs_become_constants(opset: int, image: np.ndarray) -> None:
    """As every file before IR version 4 has them."""
    proto = classifier(opset)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    given = ir.from_proto(proto)
    assert graph.summary(given).parameters == WEIGHT.size + HEAD.size
    model = graph.upgrade(given)
    assert [value.name for value in model.graph.inputs] == ["image"]
    assert graph.constant_weight(model.graph[0]) is not None
    before = run(graph.upgrade(ir.from_proto(classifier())), {"image": image})
    np.testing.assert_array_equal(run(model, {"image": image})["logits"], before["logits"])


def test_inputs_and_outputs_name_their_dynamic_axes(model: ir.Model) -> None:
    assert graph.inputs(model) == (TensorInfo("image", "float32", ("batch", 3, 16, 12)),)
    assert graph.outputs(model) == (TensorInfo("logits", "float32", ("batch", 5)),)


def test_an_axis_without_a_name_gets_one() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (int64[?, 2] ids) => (int64[?, 2] y)'
        "{ y = Identity(ids) }"
    )
    assert graph.inputs(model)[0].shape == ("ids.0", 2)
    assert graph.outputs(graph.bind(model, {"ids.0": 7}))[0].shape == (7, 2)


def test_bind_makes_every_shape_static_and_leaves_the_model(model: ir.Model) -> None:
    static = graph.bind(model, {"batch": 4})
    shapes = {v.name: list(v.shape or ()) for n in static.graph for v in n.outputs}
    assert shapes == {
        "conv": [4, 16, 16, 12], "relu": [4, 16, 16, 12], "pool": [4, 16, 1, 1],
        "flat": [4, 16], "logits": [4, 5],
    }  # fmt: skip
    assert graph.inputs(model)[0].shape[0] == "batch"


def test_bind_evaluates_derived_axes() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[a, b, c] x) => (float[?, ?, ?] y)'
        "{ y = Relu(x) }"
    )
    model.graph.inputs[0].shape = ir.Shape(["past", "past + sequence", "batch size"])
    bound = graph.bind(model, {"past": 3, "sequence": 4})
    assert graph.outputs(bound)[0].shape == (3, 7, "batch size")


@pytest.mark.parametrize(
    "norm", ["GroupNormalization <num_groups=2> (c, w_g, w_g)", "MeanVarianceNormalization (c)"]
)
def test_a_normalization_without_inference_in_onnx_hides_no_costs(norm: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch, 4, size] x, float[4, 4, 3] w_1, float[4] w_g) => (float[batch, 4, out] y) {{
      [first] c = Conv <strides=[2]> (x, w_1)
      [norm] n = {norm}
      [second] y = Conv (n, w_1)
    }}"""
    model = graph.upgrade(network(text))
    costs = graph.costs(model, {"batch": 2, "size": 13})
    assert (costs["first"].macs, costs["norm"].out_bytes) == (2 * 4 * 6 * 12, 2 * 4 * 6 * 4)
    assert costs["second"].macs == 2 * 4 * 4 * 12


def test_shapes_that_contradict_the_nodes_of_a_branch_are_forgotten() -> None:
    """As Paddle's converter writes them; what follows the branch has a type."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[1] x) => (float[n] z) {
            y = If (c) <then_branch = t () => (float r) { r = Neg (x) },
                        else_branch = e () => (float s) { s = Identity (x) }>
            z = Relu (y)
        }"""
    )
    graph.infer_shapes(model)
    assert [str(node.outputs[0].dtype) for node in model.graph] == ["FLOAT", "FLOAT"]


def test_infer_shapes_refuses_what_does_not_fit() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 3] a, float[4, 5] b) => '
        "(float[2, 5] y) { y = MatMul(a, b) }"
    )
    with pytest.raises(InputRefused, match="shapes do not fit"):
        graph.infer_shapes(model)


def test_expose_returns_inner_values(model: ir.Model, image: np.ndarray) -> None:
    tapped = graph.expose(model, ["relu", "image", "conv", "relu", "logits"])
    assert [o.name for o in graph.outputs(tapped)] == ["logits", "relu", "conv"]
    assert len(model.graph.outputs) == 1
    result = run(tapped, {"image": image})
    np.testing.assert_array_equal(result["relu"], np.maximum(result["conv"], 0))
    alone = graph.expose(model, ["conv"], alone=True)
    assert [o.name for o in graph.outputs(alone)] == ["conv"]
    np.testing.assert_array_equal(run(alone, {"image": image})["conv"], result["conv"])
    with pytest.raises(OptkitError, match="no value 'nothing'"):
        graph.expose(model, ["nothing"])


# constants


def test_constant_weight_looks_through_transpose_and_dequantize() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] x, float[4, 4] z) => (float[n, 4] d)
        <int8[4, 4] q = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}, float s = {0.5}, float[4, 4] w =
         {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> {
            dq = DequantizeLinear(q, s)
            t = Transpose<perm = [1, 0]>(dq)
            a = MatMul(x, t)
            b = MatMul(a, w)
            c = MatMul(b, z)
            d = MatMul(w, c)
        }""")
    found = {n.outputs[0].name: graph.constant_weight(n) for n in model.graph}
    assert {k: (v[0], v[1].name) for k, v in found.items() if v is not None} == {
        "a": (1, "q"), "b": (1, "w"), "d": (0, "w"),
    }  # fmt: skip


def test_nan_in_a_weight_is_refused_by_name(model: ir.Model) -> None:
    graph.check_finite(model)
    broken = WEIGHT.copy()
    broken[1, 2, 0, 0], broken[2, 2, 0, 0] = np.nan, np.inf
    model.graph.initializers["w"].const_value = ir.Tensor(broken)
    with pytest.raises(InputRefused, match=r"tensor 'w': 2 of 432 .* \(used by conv\)"):
        graph.check_finite(model)


def test_infinity_in_a_mask_is_meant() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21]> g (float[2, 2] x) => (float[2, 2] y)
        <float[2, 2] m = {0, 0, 0, 0}> { y = %s(x, m) }"""
    for op, refused in (("Add", False), ("MatMul", True)):
        model = ir.from_onnx_text(text % op)
        mask = np.array([[0, -np.inf], [0, 0]], np.float32)
        model.graph.initializers["m"].const_value = ir.Tensor(mask)
        if refused:
            with pytest.raises(InputRefused, match="tensor 'm'"):
                graph.check_finite(model)
        else:
            graph.check_finite(model)


def test_evaluate_runs_one_node_and_reports_what_it_cannot() -> None:
    node = ir.node("Slice", [ir.Value(name="x")] * 3, name="cut")
    x = np.arange(6).reshape(3, 2)
    (result,) = graph.evaluate(node, [x, np.array([1]), np.array([3])], 21)
    np.testing.assert_array_equal(result, x[1:3])
    with pytest.raises(InputRefused, match="cut"):
        graph.evaluate(node, [x, np.array([1]), None], 21)


# costs


def test_summary_counts_what_is_there(model: ir.Model) -> None:
    found = graph.summary(model, {"batch": 2})
    assert found.parameters == WEIGHT.size + HEAD.size
    assert found.weight_bytes == 4 * (WEIGHT.size + HEAD.size)
    assert found.macs == 2 * (16 * 12 * 16 * 27 + 16 * 5)
    assert found.macs_unknown == 0
    assert found.operators == {
        "Conv": 1, "Flatten": 1, "GlobalAveragePool": 1, "MatMul": 1, "Relu": 1,
    }  # fmt: skip
    assert found.precision == GraphPrecision({"float": 2}, weighted_nodes=2, quantized_nodes=0)
    assert found.inputs == (TensorInfo("image", "float32", ("batch", 3, 16, 12)),)
    assert graph.summary(model).macs == found.macs // 2


def test_quantized_nodes_and_their_parameters_are_counted() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 21]> g (float[n, 2] x) => (float[n, 2] y)
        <int8[2, 2] q = {1, 2, 3, 4}, float s = {0.5}> {
            xq = QuantizeLinear<output_dtype = 3>(x, s)
            xd = DequantizeLinear(xq, s)
            w = DequantizeLinear(q, s)
            y = MatMul(xd, w)
        }""")
    found = graph.summary(model)
    assert found.precision.quantized_nodes == 1
    assert found.parameters == 4


def test_costs_count_bytes_at_the_given_axes(model: ir.Model) -> None:
    found = graph.costs(model, {"batch": 2})
    assert list(found) == ["conv", "relu", "pool", "flat", "head_mm"]
    conv = found["conv"]
    assert (conv.op, conv.weight_bytes) == ("Conv", WEIGHT.nbytes)
    assert conv.in_bytes == 4 * 2 * 3 * 16 * 12
    assert conv.out_bytes == 4 * 2 * 16 * 16 * 12
    assert found["relu"].macs == 0


@settings(max_examples=25, deadline=None)
@given(
    group=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    batch=st.integers(1, 3),
    op=st.sampled_from(["Conv", "ConvTranspose"]),
)
def test_macs_are_the_products_of_a_direct_convolution(
    group: int, kernel: int, stride: int, batch: int, op: str
) -> None:
    """Counted another way: where all numbers are 1, the sum of the result is the products."""
    outer, inner = (4, 6) if op == "ConvTranspose" else (6, 4)
    weight = np.ones((outer, inner // group, kernel, kernel), np.float32)
    node = helper.make_node(op, ["x", "w"], ["y"], "n", group=group, strides=[stride] * 2)
    proto = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4, 7, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 6, None, None])],
        [numpy_helper.from_array(weight, "w")],
    )
    exported = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 21)])
    exported.ir_version = 10
    model = ir.from_proto(exported)
    found = graph.costs(model, {"b": batch})["n"]
    result = run(model, {"x": np.ones((batch, 4, 7, 6), np.float32)})["y"]
    assert found.macs == int(result.sum())
    assert found.out_bytes == 4 * prod(result.shape)


@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_cell_counts_its_steps(directions: int) -> None:
    """The hand count: per step and row 4 gates × hidden × (inputs + hidden)."""
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="cell", hidden_size=5,
                              direction=("forward", "bidirectional")[directions - 1])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", 2, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.zeros((directions, 20, size), np.float32), name)
             for name, size in (("w", 3), ("r", 5))],
        ),
        opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
    cell = graph.costs(ir.from_proto(made), {"steps": 7})["cell"].recurrence
    assert cell == Recurrence(7 * directions, 7 * directions * 2 * 20 * (3 + 5))
    assert graph.costs(ir.from_proto(made), {})["cell"].recurrence is None


def test_external_weights_of_an_older_opset_are_converted(tmp_path: Path) -> None:
    """The converter must not seek the data file: it may stand in another folder."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
            "g",
            [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
            [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
            [onnx.numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )
    onnx.save(
        made,
        tmp_path / "old.onnx",
        save_as_external_data=True,
        location="old.data",
        size_threshold=0,
    )
    model = graph.upgrade(graph.load(tmp_path / "old.onnx"))
    assert model.opset_imports[""] == 21
    np.testing.assert_array_equal(graph.array(model.graph.initializers["w"]), weight)


def test_a_graph_that_needs_large_pictures_is_summarized_at_large_sizes() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[batch, 1, height, 8] x) => (float[batch, 2, height, 8] y)
        <float[1, 1, 1, 1] w = {0.5}, float[4] scales = {1, 1, 2, 1}> {
            [pool] p = MaxPool <kernel_shape=[2, 1], strides=[2, 1], pads=[1, 0, 0, 0]> (x)
            [resize] r = Resize (p, , scales)
            [conv] c = Conv (x, w)
            [both] y = Concat <axis=1> (c, r)
        }""")
    found = graph.summary(model)  # of height 1, the two parts differ in height
    assert found.axes == {"batch": 1, "height": 640} and found.macs == 640 * 8
    assert graph.summary(model, {"height": 4}).macs == 4 * 8


def test_readers_read_another_value_and_an_output_keeps_its_name() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Abs (x) y = Neg (a) b = Relu (a) }"
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    absolute, negative, relu = model.graph
    graph.read_instead(negative, model.graph.inputs[0])  # an output of the graph
    assert [value.name for value in model.graph.outputs] == ["y"]
    kept = model.graph.outputs[0].producer()
    assert kept is not None and kept.op_type == "Identity"
    assert kept.inputs[0] is model.graph.inputs[0]
    graph.read_instead(absolute, model.graph.inputs[0])
    assert relu.inputs[0] is model.graph.inputs[0] and not absolute.outputs[0].uses()
