"""Sizes to trace and compare at, names of outputs, and how far two runtimes may differ."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils import _pytree

from optkit.craft.sources import dynamic_axes, export_check, outputs
from optkit.craft.sources.compared_sizes import compared_sizes
from optkit.craft.sources.comparison_trials import ComparisonTrial
from optkit.facts.errors import ExportFailed, UsageError
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground import graph

RANGES = st.tuples(*[st.integers(1, 20)] * 3).map(lambda sizes: AxisRange(*sorted(sizes)))
AXES = st.dictionaries(st.sampled_from("abcd"), RANGES)


@given(AXES)
def test_sizes_stay_in_range(ranges: dict[str, AxisRange]) -> None:
    sizes = dynamic_axes.traced_sizes(ranges)
    assert sizes.keys() == ranges.keys()
    assert all(ranges[name].min <= size <= ranges[name].max for name, size in sizes.items())


@given(AXES)
@example({"b": AxisRange(1, 4, 4), "a": AxisRange(4, 4, 4)})
def test_traced_sizes_hide_no_axis(ranges: dict[str, AxisRange]) -> None:
    """No 1 where 2 is allowed, and no two equal ones where the ranges leave a choice."""
    sizes = dynamic_axes.traced_sizes(ranges)
    assert all(sizes[name] > 1 or axis.max == 1 for name, axis in ranges.items())
    for name, axis in ranges.items():
        if axis.max - max(axis.min, 2) >= len(ranges):
            assert [n for n in sizes if sizes[n] == sizes[name] and n < name] == []


@given(AXES)
def test_traced_sizes_are_near_the_tuned_ones(ranges: dict[str, AxisRange]) -> None:
    """The smallest ones may make a feature map of one place."""
    for name, size in dynamic_axes.traced_sizes(ranges).items():
        assert abs(size - ranges[name].opt) <= len(ranges)


@given(AXES)
def test_compared_sizes_differ_from_the_traced_ones(ranges: dict[str, AxisRange]) -> None:
    traced, found = dynamic_axes.traced_sizes(ranges), compared_sizes(ranges, None)
    for name, axis in ranges.items():
        assert axis.min == axis.max or any(sizes[name] != traced[name] for sizes in found)


class Pair(NamedTuple):
    left: Any
    right: Any


TREES = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("uvw"), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=8,
)


@given(TREES)
def test_leaves_come_in_torchs_order_under_distinct_names(tree: Any) -> None:
    found = outputs.leaves(tree)
    assert list(found.values()) == _pytree.tree_leaves(tree)


def test_names_of_outputs() -> None:
    assert list(outputs.leaves(1)) == ["output"]
    assert list(outputs.leaves((1, [2, {"k": 3}], None))) == [
        "output_0", "output_1.0", "output_1.1.k",
    ]  # fmt: skip
    assert list(outputs.leaves({"logits": 1, "pair": Pair(2, 3)})) == [
        "logits", "pair.left", "pair.right",
    ]  # fmt: skip
    assert outputs.names_apart(["x", "y"], {"x"}) == ("x_out", "y")


class Fake:
    """A session that returns what it is told."""

    def __init__(self, found: np.ndarray) -> None:
        self.found = found

    inputs: tuple[TensorInfo, ...] = ()

    def run(self, feed: Feed) -> Feed:
        return {"y": self.found}


def compare(expected: np.ndarray, found: np.ndarray) -> float:
    case = export_check.ComparedRun(ComparisonTrial({"n": 2}, "random", dict), {}, {"y": expected})
    (check,) = export_check.check([case], Fake(found), None)  # type: ignore[arg-type]
    assert check.sizes == {"n": 2}
    return check.errors["y"]


@given(
    st.floats(1e-3, 1e6),
    st.floats(0, 3e-3).filter(lambda share: abs(share - 1e-3) > 1e-5),
    st.booleans(),
)
def test_limit_is_a_share_of_the_largest_output(scale: float, share: float, up: bool) -> None:
    expected = np.array([scale, -scale / 2, 0.0], dtype=np.float32)
    found = expected.copy()
    found[2] += (1 if up else -1) * share * scale
    if share < 1e-3:
        assert compare(expected, found) == pytest.approx(share * scale, rel=1e-4, abs=1e-30)
    else:
        with pytest.raises(ExportFailed, match="output 'y' differs from torch by"):
            compare(expected, found)


def test_what_is_not_finite_must_agree() -> None:
    special = np.array([1.0, np.nan, np.inf, -np.inf], dtype=np.float32)
    assert compare(special, special) == 0.0
    for place, value in ((1, 1.0), (2, -np.inf), (2, 5.0), (0, np.nan)):
        found = special.copy()
        found[place] = value
        with pytest.raises(ExportFailed):
            compare(special, found)


def test_one_class_index_of_many_may_turn() -> None:
    classes = np.zeros((50, 50), np.int64)
    turned = classes.copy()
    turned[0, :2] = 1
    assert compare(classes, turned) == 2 / 2500
    turned[0, 2] = 1
    with pytest.raises(ExportFailed, match="3 of 2500"):
        compare(classes, turned)


def test_shapes_dtypes_and_integers_must_be_the_same() -> None:
    y = np.arange(3)
    assert compare(y, y) == 0.0
    for found in (np.arange(1, 4), np.arange(4), y.astype(np.int32)):
        with pytest.raises(ExportFailed, match="output 'y'"):
            compare(y, found)


def spec(name: str, *shape: int | str, dtype: str = "float32") -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape))


def test_a_sum_of_axes_keeps_its_declared_order_and_name() -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (int64[s1, s7] mask, float[s1, s3] past, float[s1, s5] new) => (float[s1, sum] all) {
        all = Concat<axis: int = 1>(past, new)
    }
    """
    model = ir.from_onnx_text(text)
    model.graph.outputs[0].shape = ir.Shape(["s1", "s5 + s3"])
    dynamic_axes.declare(
        model,
        [
            spec("mask", "batch", "past + new", dtype="int64"),
            spec("past", "batch", "past"),
            spec("new", "batch", "new"),
        ],
    )
    assert graph.outputs(model)[0].shape == ("batch", "past + new")
    assert graph.inputs(model)[0].shape == ("batch", "past + new")


def test_an_axis_of_one_size_becomes_a_number_in_a_sum() -> None:
    ranges = {"past": AxisRange(0, 4, 8), "new": AxisRange(1, 1, 1)}
    (mask,), moving = dynamic_axes.fix_single_sizes(
        [spec("mask", "past + new", dtype="int64")], ranges
    )
    assert mask.info.shape == ("past + 1",)
    assert list(moving) == ["past"]
    with pytest.raises(UsageError, match="'old' of input 'mask' has no range"):
        dynamic_axes.fix_single_sizes([spec("mask", "old + new")], ranges)
