"""Values that follow from constants alone: their sizes are known before anything computes them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.craft import fusion
from optkit.facts.errors import InputRefused, OptkitError, UnsafeFile
from optkit.ground import graph
from optkit.ground.graph import growth
from optkit.ground.intake import check_onnx
from tests.hostile import growing_files, mutations, onnx_files

_GROWS = r"follows from constants alone|one by one|larger than libraries"


@pytest.mark.parametrize("name", sorted(growing_files.REFUSED))
def test_the_node_that_grows_is_named(name: str, tmp_path: Path) -> None:
    node, build = growing_files.REFUSED[name]
    model = graph.load(build(tmp_path))
    with pytest.raises(InputRefused, match=_GROWS) as caught:
        graph.upgrade(model)
    assert f"node '{node}" in str(caught.value.where)


@pytest.mark.parametrize("name", sorted(onnx_files.GROWTH))
def test_known_ways_to_grow(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=_GROWS):
        graph.check_growth(graph.load(onnx_files.GROWTH[name](tmp_path)))


@pytest.mark.parametrize("name", sorted(growing_files.EMPTY))
def test_an_empty_initializer_beside_a_huge_dimension(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeFile, match="too large for any memory"):
        check_onnx(growing_files.EMPTY[name](tmp_path))


def test_a_branch_and_a_function_are_read_too(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        sizes = growing_files.integers("s", 1 << 40)
        body = [growing_files.node("ConstantOfShape", "s", "many"),
                growing_files.node("Cast", "many", "b", to=TensorProto.FLOAT)]  # fmt: skip
        branch = helper.make_graph(
            body, "branch", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
        )
        flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
        model.graph.initializer.extend([flag, sizes])
        model.graph.node.append(
            helper.make_node("If", ["flag"], ["z"], then_branch=branch, else_branch=branch)
        )

    with pytest.raises(InputRefused, match="constants alone") as caught:
        graph.check_growth(graph.load(onnx_files.model_with(change)(tmp_path)))
    assert "constantofshape" in str(caught.value.where)


@pytest.mark.parametrize("name", sorted(growing_files.TEXTS))
def test_an_expression_is_not_matched_while_a_graph_is_read(name: str, tmp_path: Path) -> None:
    model = graph.upgrade(graph.load(growing_files.TEXTS[name](tmp_path)))
    log = fusion.fuse(model)
    assert "RegexFullMatch" in {node.op_type for node in model.graph}
    assert "fold_constants" not in log.counts
    graph.summary(model)  # counts bytes, of which a text has no fixed number
    graph.save(model, tmp_path / "again.onnx")
    graph.check(tmp_path / "again.onnx")


def test_a_node_that_does_not_fit_its_inputs_is_left_to_shape_inference() -> None:
    """Paddle's converter gives Resize both scales and sizes when neither is used."""
    numbers = helper.make_tensor("n", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    sizes = helper.make_tensor("s", TensorProto.INT64, [4], [1, 1, 8, 8])
    data = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 2, 2], [0.0] * 4)
    nodes = [
        helper.make_node("Resize", ["w", "", "n", "s"], ["r"]),
        helper.make_node("NoSuchOperator", ["r"], ["z"]),
        helper.make_node("Gather", ["w", "n"], ["g"], axis=9),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [], [], [numbers, sizes, data]),
        opset_imports=[helper.make_opsetid("", 21)],
    )
    growth.check(model, set(), _evaluated)


def test_more_may_be_computed_from_more_stored_bytes() -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1 << 14, 1], bytes(4 << 14), raw=True)
    row = helper.make_tensor("r", TensorProto.INT64, [2], [1, 1 << 14])
    nodes = [
        helper.make_node("Transpose", ["big"], ["t"], perm=[1, 0]),
        helper.make_node("Tile", ["t", "r"], ["z"]),
    ]

    def model(stored: int) -> onnx.ModelProto:
        big = helper.make_tensor_value_info("big", TensorProto.FLOAT, [1, stored])
        return helper.make_model(
            helper.make_graph(nodes, "g", [big], [], [weight, row]),
            opset_imports=[helper.make_opsetid("", 21)],
        )  # fmt: skip

    with pytest.raises(InputRefused, match="constants alone"):
        growth.check(model(1 << 14), {"big"}, lambda *_: [])
    growth.check(model(1 << 10), {"big"}, lambda *_: [])
    growth.check(model(1 << 14), set(), lambda *_: [])  # an input of the caller


def test_one_axis_that_grows_through_concat_is_refused_once_its_size_is_known(
    tmp_path: Path,
) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
        del model.graph.node[:]
        model.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))
        names = ["y", *(f"c{i}" for i in range(30))]
        for one, two in itertools.pairwise(names):
            model.graph.node.append(helper.make_node("Concat", [one, one], [two], axis=0))
        model.graph.output.append(
            helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, ["m"])
        )

    model = graph.upgrade(graph.load(onnx_files.model_with(change)(tmp_path)))
    with pytest.raises(InputRefused, match="follows one by one") as caught:
        graph.summary(model)
    assert "Concat" in str(caught.value.where)


_SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(shape=_SHAPES, repeats=st.integers(1, 4), axis=st.integers(0, 2))
def test_the_sizes_are_those_of_the_reference(shape: list[int], repeats: int, axis: int) -> None:
    """Tile, Concat, Expand and Range of constants: what is counted is what is computed."""
    axis %= len(shape)
    numbers = np.ones(shape, np.float32)
    nodes = [
        helper.make_node("Tile", ["w", "r"], ["a"]),
        helper.make_node("Concat", ["a", "w"], ["b"], axis=axis),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("ReduceProd", ["s"], ["n"], keepdims=0),
        helper.make_node("Range", ["zero", "n", "one"], ["c"]),
    ]
    tile = [1] * len(shape)
    tile[axis] = repeats
    constants = [
        onnx.numpy_helper.from_array(numbers, "w"),
        helper.make_tensor("r", TensorProto.INT64, [len(tile)], tile),
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("one", TensorProto.INT64, [], [1]),
    ]
    outs = [helper.make_tensor_value_info(n, t, None) for n, t in
            (("a", 1), ("b", 1), ("s", 7), ("n", 7), ("c", 7))]  # fmt: skip
    model = helper.make_model(helper.make_graph(nodes, "g", [], outs, constants),
                              opset_imports=[helper.make_opsetid("", 21)])  # fmt: skip
    results = onnx.reference.ReferenceEvaluator(model).run(None, {})
    walk = growth._Walk(model, _evaluated)
    walk.graph(model.graph, {})
    assert walk._computed == sum(array.nbytes for array in results)


def _evaluated(node: onnx.NodeProto, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
    feed = {name: array for name, array in zip(node.input, arrays, strict=True) if name}
    run = onnx.reference.ReferenceEvaluator(node, opsets={"": 21})
    return [np.asarray(found) for found in run.run(None, feed)]


def test_a_node_without_an_output_is_named(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("MatMul", ["x", "w"], [], name="nothing"))

    with pytest.raises(InputRefused, match="has no output") as caught:
        graph.load(onnx_files.model_with(change)(tmp_path))
    assert "nothing" in str(caught.value.where)


def test_a_node_with_too_few_inputs_is_named(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("MatMul", ["x"], ["z"], name="half"))

    model = graph.load(onnx_files.model_with(change)(tmp_path))
    with pytest.raises(InputRefused, match="has 1 inputs and needs 2") as caught:
        graph.check_growth(model)
    assert "half" in str(caught.value.where)


def test_an_attribute_without_a_type_is_named(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].attribute.add(name="axis", i=1)

    with pytest.raises(InputRefused, match="'axis' has no type"):
        graph.load(onnx_files.model_with(change)(tmp_path))


@pytest.mark.parametrize("seed", range(0, 1200, 12))
def test_mutated_graphs_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    path = mutations.graph(seed, tmp_path)
    try:
        check_onnx(path)
        graph.summary(graph.upgrade(graph.load(path)))
    except OptkitError as error:
        assert error.exit_code == 5, str(error)
