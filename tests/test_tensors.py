"""Dimensions that are sums of axes: named, sized, and fixed in part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends.shape_profile import profile
from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import AxisRange, TensorInfo, axes_of, narrowed, size_of, with_sizes

AXES = ("past", "new", "batch")
sizes = st.fixed_dictionaries({axis: st.integers(0, 9) for axis in AXES})
sums = st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True).map(" + ".join)


def test_axes_are_named_once_in_order() -> None:
    assert axes_of(("batch", 3, "past + new", "new")) == ("batch", "past", "new")
    assert axes_of(("past + 4", 7)) == ("past",)
    assert axes_of(()) == ()


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9), st.integers(-9, 200))
def test_the_nearest_of_the_sizes(low: int, more: int, multiple: int, size: int) -> None:
    axis = AxisRange(low, low, low + more, multiple)
    sizes = [n for n in range(low, low + more + 1) if n in axis]
    assert all(n % multiple == 0 for n in sizes)
    if sizes:
        found = axis.nearest(size)
        assert found in sizes and abs(found - size) == min(abs(n - size) for n in sizes)


def test_a_range_is_written_as_it_was_before_multiples() -> None:
    assert to_json(AxisRange(1, 2, 3)) == {"min": 1, "opt": 2, "max": 3}
    wide = AxisRange(8, 16, 32, 8)
    assert from_json(AxisRange, to_json(wide)) == wide


def test_an_axis_without_a_size_is_named() -> None:
    with pytest.raises(KeyError, match="new"):
        size_of("past + new", {"past": 1})


@given(dim=sums | st.integers(0, 9), known=sizes, fixed=st.sets(st.sampled_from(AXES)))
def test_fixing_some_axes_changes_no_size(
    dim: int | str, known: dict[str, int], fixed: set[str]
) -> None:
    partly = with_sizes(dim, {axis: known[axis] for axis in fixed})
    assert size_of(partly, known) == size_of(dim, known)
    assert fixed.isdisjoint(axes_of([partly]))
    assert isinstance(partly, int) == (not set(axes_of([dim])) - fixed)


def test_a_profile_adds_the_ends_of_a_sum() -> None:
    axes = {"batch": AxisRange(1, 2, 4), "past": AxisRange(0, 5, 9), "new": AxisRange(1, 1, 8)}
    found = profile([TensorInfo("mask", "int64", ("batch", "past + new"))], axes)
    assert found["mask"] == ((1, 1), (2, 6), (4, 17))


def test_an_empty_cache_is_that_of_the_graph() -> None:
    inputs = [TensorInfo("ids", "int64", ("b", "s")), TensorInfo("past", "uint8", ("b", 2, "p", 4))]
    feed = {"ids": np.ones((3, 5), np.int64), "past": np.zeros((3, 2, 0, 8), np.float32)}
    found = narrowed(feed, inputs)
    assert (found["past"].dtype, found["past"].shape) == (np.uint8, (3, 2, 0, 4))
    assert found["ids"] is feed["ids"]
    full = feed | {"past": np.zeros((3, 2, 1, 8), np.float32)}
    with pytest.raises(InputRefused, match="codes") as caught:
        narrowed(full, inputs)
    assert "'past'" in str(caught.value)
    codes = feed | {"past": np.zeros((3, 2, 7, 4), np.uint8)}
    assert narrowed(codes, inputs)["past"] is codes["past"]
