"""A graph in parts computes what it did in one, wherever it was cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.facts.errors import InputRefused, OptkitError
from optkit.ground import graph
from optkit.ground.graph import cutting
from optkit.ground.runtimes import SessionOptions

WIDTH = 6
BRANCHES = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,6] x, bool which, float[6,6] w, float[6,6] v) => (float[N,6] y) {
  [a] a = MatMul (x, w)
  [b] b = Relu (a)
  [if] c = If (which) <
    then_branch = t () => (float[N,6] t1) { [t1] t1 = Add (b, a) },
    else_branch = e () => (float[N,6] e1) { [e1] e1 = Identity (x) } >
  [d] y = MatMul (c, v)
}"""


BLOCK = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,6] x, float[6,6] w, float[6,6] wo, float[6,12] wu, float[12,6] wd) => (float[N,6] y) {
  [q] q = MatMul (x, w)
  [k] k = Tanh (q)
  [a] a = Mul (q, k)
  [o] o = MatMul (a, wo)
  [r] r = Add (x, o)
  [u] u = MatMul (r, wu)
  [g] h = Tanh (u)
  [d] d = MatMul (h, wd)
  [e] y = Add (r, d)
}"""


def network(text: str) -> ir.Model:
    """From text; its inputs named w* and v* are weights."""
    model = ir.from_onnx_text(text)
    for value in [v for v in model.graph.inputs if str(v.name)[0] in "wv" and v.shape is not None]:
        if value.dtype == ir.DataType.FLOAT:
            model.graph.inputs.remove(value)
            numbers = np.random.default_rng(0).standard_normal(value.shape.numpy())
            value.const_value = ir.tensor(numbers.astype(np.float32), name=value.name)
            model.graph.register_initializer(value)
    return graph.infer_shapes(model)


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        graph.save(model, path)
        with OnnxRuntime().session(path, SessionOptions(level="none", threads=1)) as session:
            return session.run({info.name: feed[info.name] for info in session.inputs})


def in_parts(model: ir.Model, parts: list[graph.GraphPart], feed: dict[str, np.ndarray]) -> dict:
    """The outputs, each computed by the part that makes it, from what crosses the borders."""
    made = {str(n.name): [str(v.name) for v in n.outputs] for n in model.graph}
    outputs = {str(value.name) for value in model.graph.outputs}
    crossing: dict[str, np.ndarray] = {}
    found = {}
    for part in parts:
        own = outputs & {name for node in part.nodes for name in made[node]}
        new = [name for name in part.leaves if name not in part.reads]
        assert crossing.keys() == set(part.reads)
        wanted = sorted({*new, *own})
        results = {}
        if wanted:
            results = run(graph.between(model, part.reads, wanted), feed | crossing)
        crossing = {name: results.get(name, crossing.get(name)) for name in part.leaves}
        found |= {name: results[name] for name in own}
    return found


@st.composite
def networks(draw: st.DrawFn) -> ir.Model:
    """Products with weights, sums and activations of earlier values, in any order."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", WIDTH]))
    values, nodes, constants = [x], [], []
    for index in range(draw(st.integers(2, 12))):
        kind = draw(st.sampled_from(["MatMul", "MatMul", "Add", "Tanh", "Turned", "Shape"]))
        one = draw(st.sampled_from(values))
        inputs: list[ir.Value] = [one]
        if kind in ("MatMul", "Turned"):
            numbers = np.random.default_rng(index).standard_normal((WIDTH, WIDTH)) / WIDTH
            tensor = ir.tensor(numbers.astype(np.float32), name=f"w{index}")
            kind_of, size = ir.TensorType(ir.DataType.FLOAT), ir.Shape((WIDTH, WIDTH))
            weight = ir.Value(name=tensor.name, const_value=tensor, type=kind_of, shape=size)
            constants.append(weight)
            if kind == "Turned":  # far in front of its product, as casts of weights stand
                turn = ir.node("Transpose", [weight], name=f"turn{index}")
                turn.outputs[0].name = f"t{index}"
                nodes.insert(0, turn)
                weight = turn.outputs[0]
            inputs, kind = [one, weight], "MatMul"
        elif kind == "Add":
            inputs = [one, draw(st.sampled_from(values))]
        elif kind == "Shape":  # what another node reads of a value besides its numbers
            shape = ir.node("Shape", [one], name=f"shape{index}")
            shape.outputs[0].name = f"s{index}"
            nodes.append(shape)
            inputs, kind = [draw(st.sampled_from(values)), shape.outputs[0]], "Reshape"
        node = ir.node(kind, inputs, name=f"n{index}")
        node.outputs[0].name = f"v{index}"
        nodes.append(node)
        values.append(node.outputs[0])
    outputs = {values[-1], draw(st.sampled_from(values[1:]))}
    main = ir.Graph([x], sorted(outputs, key=lambda v: str(v.name)), nodes=nodes,
                    initializers=constants, opset_imports={"": 21}, name="g")  # fmt: skip
    for value in outputs:
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", WIDTH])
    return graph.infer_shapes(ir.Model(main, ir_version=10))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(model=networks(), data=st.data())
def test_parts_in_turn_are_the_whole(model: ir.Model, data: st.DataObject) -> None:
    borders = data.draw(st.lists(st.integers(0, len(model.graph)), max_size=5))
    parts = graph.cut(model, borders)
    assert [name for part in parts for name in part.nodes] == [str(n.name) for n in model.graph]
    feed = {"x": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)}
    whole, found = run(model, feed), in_parts(model, parts, feed)
    assert found.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(found[name], values)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(model=networks(), most=st.integers(1, 1000))
def test_no_part_reads_more_weights_than_it_may(model: ir.Model, most: int) -> None:
    each = WIDTH * WIDTH * 4
    products = {str(n.name) for n in model.graph if n.op_type == "MatMul"}
    parts = graph.cut(model, graph.places(model, most))
    for part in parts:
        assert len(products & set(part.nodes)) * each <= max(most, each)
    assert len(parts) == 1 or len(products) * each > most


def test_a_border_lies_where_few_values_cross() -> None:
    """Two fit with any of three; between the sums of a transformer's block one value crosses."""
    model = network(BLOCK)
    parts = graph.cut(model, graph.places(model, 4 * 6 * (6 + 6 + 12)))
    assert [(part.reads, part.leaves) for part in parts] == [((), ("r",)), (("r",), ())]
    assert parts[0].nodes[-1] == "r"


def test_what_follows_from_the_inputs_is_computed_anew() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,4] x, int64[N,4] mask, float[4,4] w, float[4,4] v) => (float[N,4] y) {
      [m] m = Cast <to=1> (mask)
      [a] a = MatMul (x, w)
      [b] b = Mul (a, m)
      [c] c = MatMul (b, v)
      [d] y = Mul (c, m)
    }"""
    model = network(text)
    _, second = graph.cut(model, [3])
    assert second.reads == ("b",)
    again = graph.between(model, second.reads, ["y"])
    assert [n.name for n in again.graph] == ["m", "c", "d"]
    assert [v.name for v in again.graph.inputs] == ["x", "mask", "b"]
    nothing = graph.between(model, second.reads, [])
    assert not list(nothing.graph) and not nothing.graph.initializers
    assert [v.name for v in nothing.graph.inputs] == ["x", "mask", "b"]


@pytest.mark.parametrize("which", [True, False])
@pytest.mark.parametrize("place", range(5))
def test_what_a_subgraph_reads_crosses_too(place: int, which: bool) -> None:
    model = network(BRANCHES)
    feed = {"x": np.ones((2, 6), np.float32), "which": np.array(which)}
    found = in_parts(model, graph.cut(model, [place]), feed)
    np.testing.assert_array_equal(found["y"], run(model, feed)["y"])


def test_a_value_without_a_type_cannot_cross() -> None:
    model = graph.infer_shapes(
        ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,4] x) => (float[N,4] y) { a = Relu (x) y = Relu (a) }""")
    )
    with pytest.raises(OptkitError, match="no value 'b'"):
        graph.between(model, ["b"], ["y"])
    model.graph[0].outputs[0].type = None
    with pytest.raises(InputRefused, match="'a'"):
        cutting.between(model, ["a"], ["y"])
