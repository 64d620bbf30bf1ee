"""Profiles: shapes at the ends of every axis, for all inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends.shape_profile import batch, profile
from optkit.facts.errors import UsageError
from optkit.facts.tensors import AxisRange, TensorInfo

sizes = st.integers(1, 99)
ranges = st.lists(sizes, min_size=3, max_size=3).map(sorted).map(lambda s: AxisRange(*s))
shapes = st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["batch", "length"])), max_size=4)


@given(shape=shapes.map(tuple), spans=st.tuples(ranges, ranges))
def test_ends_are_ordered_and_fixed_sizes_stay(
    shape: tuple[int | str, ...], spans: tuple[AxisRange, AxisRange]
) -> None:
    axes = dict(zip(("batch", "length"), spans, strict=True))
    low, opt, high = profile([TensorInfo("x", "float32", shape)], axes)["x"]
    for dim, a, b, c in zip(shape, low, opt, high, strict=True):
        span = axes[dim] if isinstance(dim, str) else AxisRange(dim, dim, dim)
        assert (a, b, c) == (span.min, span.opt, span.max)


@pytest.mark.parametrize("ends", [(4, 2, 8), (1, 9, 8), (0, 0, 0), (-1, 1, 2)])
def test_what_is_no_range_is_refused(ends: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match=r"min .* opt .* max") as caught:
        profile([TensorInfo("x", "float32", ("batch", 3))], {"batch": AxisRange(*ends)})
    assert caught.value.where == "axis 'batch'"


def test_an_axis_without_a_range_is_named() -> None:
    with pytest.raises(UsageError, match="'length'") as caught:
        profile([TensorInfo("ids", "int64", (1, "length"))], {})
    assert caught.value.where == "input 'ids'"
    assert "length: {min:" in (caught.value.hint or "")


def test_batch_is_the_first_size_of_the_first_input_that_has_axes() -> None:
    assert batch({"x": ((1, 3), (8, 3), (9, 3)), "y": ((5,), (5,), (5,))}) == 8
    assert batch({"scalar": ((), (), ()), "x": ((1, 3), (8, 3), (9, 3))}) == 8
    assert batch({"scalar": ((), (), ())}) is None
    assert batch({}) is None
