"""BatchNormalization and per-channel scale and shift fold into the linear layer before them, and
are left alone, with the reason, wherever that would change the function."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES
from optkit.ground import graph

RNG = np.random.default_rng(3)
BN = ["gamma", "beta", "mean", "var"]


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def statistics(channels: int) -> dict[str, np.ndarray]:
    found = {name: numbers(channels) for name in BN}
    found["var"] = np.abs(found["var"]) + np.float32(0.1)
    return found


def build(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    shape: list[int | str],
    outputs: tuple[str, ...] = ("y",),
    inputs: tuple[tuple[str, list[int | str]], ...] = (),
) -> ir.Model:
    proto = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in (("x", shape), *inputs)
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return graph.infer_shapes(ir.from_proto(model))


def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], f"{op}_{output}", **attributes)


def reasons(log: object) -> list[str]:
    return [entry.reason for entry in log.entries if entry.outcome == "declined"]


LINEARS = {
    "conv": ("Conv", {"w": (6, 4, 3, 3), "b": (6,)}, {"pads": [1, 0, 1, 2]}, ["n", 4, 7, 5]),
    "conv without bias": ("Conv", {"w": (6, 4, 3, 3)}, {}, ["n", 4, 7, 5]),
    "conv1d": ("Conv", {"w": (6, 4, 3)}, {"strides": [2]}, ["n", 4, 9]),
    "conv3d": ("Conv", {"w": (6, 4, 1, 2, 3)}, {}, ["n", 4, 3, 4, 5]),
    "depthwise": ("Conv", {"w": (6, 1, 3, 3), "b": (6,)}, {"group": 6}, ["n", 6, 5, 5]),
    "grouped": ("Conv", {"w": (6, 2, 3, 3), "b": (6,)}, {"group": 2}, ["n", 4, 5, 5]),
    "deconv": (
        "ConvTranspose",
        {"w": (4, 6, 3, 3), "b": (6,)},
        {"strides": [2, 2]},
        ["n", 4, 5, 5],
    ),
    "grouped deconv": ("ConvTranspose", {"w": (4, 3, 3, 3)}, {"group": 2}, ["n", 4, 5, 5]),
    "gemm": ("Gemm", {"w": (4, 6), "b": (6,)}, {}, ["n", 4]),
    "gemm transB": ("Gemm", {"w": (6, 4), "b": (1, 6)}, {"transB": 1}, ["n", 4]),
    "gemm alpha beta": ("Gemm", {"w": (4, 6), "b": (6,)}, {"alpha": 0.5, "beta": 3.0}, ["n", 4]),
    "gemm scalar bias": ("Gemm", {"w": (4, 6), "b": ()}, {"beta": 2.0}, ["n", 4]),
    "gemm without bias": ("Gemm", {"w": (4, 6)}, {}, ["n", 4]),
    "matmul": ("MatMul", {"w": (4, 6)}, {}, ["n", 4]),
}


@pytest.mark.parametrize("kind", LINEARS)
def test_batchnorm_folds(fused, kind: str) -> None:
    op, shapes, attributes, shape = LINEARS[kind]
    constants = {name: numbers(*dims) for name, dims in shapes.items()}
    model = build(
        [
            node(op, ["x", *constants], "a", **attributes),
            node("BatchNormalization", ["a", *BN], "normed", epsilon=1e-3),
            node("Relu", ["normed"], "y"),
        ],
        constants | statistics(6),
        shape,
    )
    after, log = fused(model, n=3)
    bias_add = ["Add"] if op == "MatMul" else []
    assert [n.op_type for n in after.graph] == [op, *bias_add, "Relu"]
    assert after.graph[0].name == f"{op}_a"
    assert "normed" in graph.value_names(after)  # what Relu reads keeps its name
    assert log.counts["fold_batchnorm"] == 1


def test_batchnorm_folds_into_the_add_that_holds_the_bias(fused) -> None:
    model = build(
        [
            node("MatMul", ["x", "w"], "m"),
            node("Add", ["b", "m"], "a"),
            node("BatchNormalization", ["a", *BN], "y"),
        ],
        {"w": numbers(4, 6), "b": numbers(6)} | statistics(6),
        ["n", 4],
    )
    after, _ = fused(model, n=3)
    assert [n.op_type for n in after.graph] == ["MatMul", "Add"]
    assert set(after.graph.initializers) == {"w", "b"}


CHAINS = {
    "mul": ([("Mul", (6, 1, 1))], 4),
    "scalar mul": ([("Mul", ())], 4),
    "div": ([("Div", (1, 6, 1, 1))], 4),
    "add": ([("Add", (6, 1, 1))], 4),
    "sub": ([("Sub", (6, 1, 1))], 4),
    "scale and shift": ([("Mul", (6, 1, 1)), ("Add", (6, 1, 1)), ("Div", (1,))], 4),
    "vector mul": ([("Mul", (6,)), ("Sub", (1, 6))], 2),
}


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("swap", [False, True])
def test_scale_and_shift_fold(fused, kind: str, swap: bool) -> None:
    chain, rank = CHAINS[kind]
    op, weight, shape = ("Conv", (6, 4, 3, 3), ["n", 4, 5, 5])
    if rank == 2:
        op, weight, shape = ("Gemm", (4, 6), ["n", 4])
    constants = {"w": numbers(*weight), "bias": numbers(6)}
    nodes = [node(op, ["x", "w", "bias"], "v0")]
    for index, (each, dims) in enumerate(chain):
        constants[f"c{index}"] = np.abs(numbers(*dims)) + np.float32(0.5)
        operands = [f"v{index}", f"c{index}"]
        if swap and each in ("Mul", "Add"):
            operands.reverse()
        nodes.append(node(each, operands, f"v{index + 1}"))
    nodes.append(node("Relu", [f"v{len(chain)}"], "y"))
    after, log = fused(build(nodes, constants, shape), n=2)
    assert [n.op_type for n in after.graph] == [op, "Relu"]
    assert sum(log.counts.get(rule, 0) for rule in ("fold_scale", "fold_shift")) == len(chain)


def test_scale_behind_a_token_wise_linear_folds_and_its_bias_stays_an_add(fused) -> None:
    model = build(
        [
            node("MatMul", ["x", "w"], "m"),
            node("Add", ["m", "b"], "a"),
            node("Mul", ["a", "s"], "y"),
        ],
        {"w": numbers(4, 6), "b": numbers(6), "s": numbers(6)},
        ["n", 5, 4],
    )
    after, _ = fused(model, n=2)
    assert [n.op_type for n in after.graph] == ["MatMul", "Add"]


def test_the_bias_of_a_matmul_is_no_candidate(fused) -> None:
    model = build(
        [node("MatMul", ["x", "w"], "m"), node("Add", ["m", "b"], "y")],
        {"w": numbers(4, 6), "b": numbers(6)},
        ["n", 4],
    )
    after, log = fused(model, n=2)
    assert [n.op_type for n in after.graph] == ["MatMul", "Add"]
    assert log.entries == ()


# guards

CONV = {"w": numbers(6, 4, 3, 3), "b": numbers(6)}
SHAPE: list[int | str] = ["n", 4, 5, 5]


def test_a_result_that_is_read_twice_is_left(fused) -> None:
    model = build(
        [
            node("Conv", ["x", "w", "b"], "a"),
            node("BatchNormalization", ["a", *BN], "c"),
            node("Add", ["a", "c"], "y"),
        ],
        CONV | statistics(6),
        SHAPE,
    )
    after, log = fused(model, n=2)
    assert len(after.graph) == 3
    assert reasons(log) == ["the result of Conv_a is also used elsewhere"]


def test_a_result_that_is_a_graph_output_is_left(fused) -> None:
    model = build(
        [node("Conv", ["x", "w", "b"], "a"), node("Mul", ["a", "s"], "y")],
        CONV | {"s": numbers(1)},
        SHAPE,
        outputs=("y", "a"),
    )
    after, log = fused(model, n=2)
    assert len(after.graph) == 2
    assert reasons(log) == ["the result of Conv_a is also used elsewhere"]


def test_a_weight_or_parameter_that_is_fed_is_left(fused) -> None:
    model = build(
        [node("Conv", ["x", "k"], "a"), node("BatchNormalization", ["a", *BN], "y")],
        statistics(6),
        SHAPE,
        inputs=(("k", [6, 4, 3, 3]),),
    )
    assert reasons(fused(model, n=2)[1]) == ["the weight of Conv_a is not constant"]
    constants = CONV | statistics(6)
    del constants["gamma"]
    model = build(
        [node("Conv", ["x", "w", "b"], "a"), node("BatchNormalization", ["a", *BN], "y")],
        constants,
        SHAPE,
        inputs=(("gamma", [6]),),
    )
    assert reasons(fused(model, n=2)[1]) == ["its parameters are not constant"]


@pytest.mark.parametrize("large", [False, True])
def test_a_shared_weight_is_copied_if_small_and_left_if_large(fused, large: bool) -> None:
    side = int(np.sqrt(GROWTH_LIMIT_BYTES / 4)) + 1 if large else 6
    model = build(
        [
            node("MatMul", ["x", "w"], "a"),
            node("Mul", ["a", "s"], "b"),
            node("MatMul", ["b", "w"], "y"),
        ],
        {"w": numbers(side, side) / np.float32(side), "s": numbers(side)},
        ["n", side],
    )
    after, log = fused(model, n=2)
    if large:
        assert len(after.graph) == 3
        assert "is shared and" in reasons(log)[0]
    else:
        assert [n.op_type for n in after.graph] == ["MatMul", "MatMul"]
        assert set(after.graph.initializers) == {"w", "MatMul_a.weight"}


def test_a_weight_that_is_also_an_output_is_copied(fused) -> None:
    model = build(
        [node("MatMul", ["x", "w"], "a"), node("Mul", ["a", "s"], "y")],
        {"w": numbers(4, 6), "s": numbers(6)},
        ["n", 4],
    )
    model.graph.outputs.append(model.graph.initializers["w"])
    after, _ = fused(model, n=2)
    assert [n.op_type for n in after.graph] == ["MatMul"]
    assert after.graph[0].inputs[1].name == "MatMul_a.weight"


def test_a_constant_across_other_axes_is_left(fused) -> None:
    for dims in ((5,), (1, 1, 5, 1), (1, 6, 1, 5), (1, 1, 1, 1, 1)):
        model = build(
            [node("Conv", ["x", "w", "b"], "a", pads=[1] * 4), node("Mul", ["a", "s"], "y")],
            CONV | {"s": numbers(*dims)},
            SHAPE,
        )
        after, log = fused(model, n=2)
        assert len(after.graph) == 2
        assert reasons(log) == ["its constant is not one number per output channel"]


def test_batchnorm_over_another_axis_than_the_columns_is_left(fused) -> None:
    model = build(
        [node("MatMul", ["x", "w"], "a"), node("BatchNormalization", ["a", *BN], "y")],
        {"w": numbers(4, 6)} | statistics(5),
        ["n", 5, 4],
    )
    after, log = fused(model, n=2)
    assert len(after.graph) == 2
    assert reasons(log) == ["its channels are not the columns of the product"]


def test_batchnorm_behind_something_else_says_what(fused) -> None:
    model = build(
        [node("Relu", ["x"], "a"), node("BatchNormalization", ["a", *BN], "y")],
        statistics(4),
        SHAPE,
    )
    assert reasons(fused(model, n=2)[1]) == ["its input is made by Relu"]


def test_a_fold_that_overflows_is_left(fused) -> None:
    model = build(
        [
            node("Conv", ["x", "w", "b"], "a"),
            node("Mul", ["a", "s"], "c"),
            node("Tanh", ["c"], "y"),
        ],
        {"w": CONV["w"] * np.float32(1e20), "b": CONV["b"], "s": np.float32([3e30])},
        SHAPE,
    )
    after, log = fused(model, n=2)
    assert len(after.graph) == 3
    assert reasons(log) == ["the folded parameters would overflow float32"]


def test_training_mode_is_left() -> None:
    from optkit.craft.fusion import fuse

    norm = helper.make_node(
        "BatchNormalization", ["a", *BN], ["y", "m", "v"], "bn", training_mode=1
    )
    model = build([node("Conv", ["x", "w", "b"], "a"), norm], CONV | statistics(6), SHAPE)
    assert reasons(fuse(model)) == ["it is in training mode"]
