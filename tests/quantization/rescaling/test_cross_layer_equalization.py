"""Cross-layer equalization: the ranges become equal, and a chain of layers converges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.rescaling.cross_layer_equalization import (
    LayerLink,
    converge,
    cross_layer,
    magnitudes,
    producers_error,
    ranges,
)
from optkit.craft.quantization.rescaling.smoothquant import Formats
from optkit.facts.precisions import NumberFormat

U8 = NumberFormat("uint8", "tensor", symmetric=False)
ONE = Formats(U8, NumberFormat("int8", "tensor", symmetric=True))


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=20))
def test_both_ranges_become_the_geometric_mean(pairs: list[tuple[float, float]]) -> None:
    r1, r2 = np.array(pairs).T
    s = cross_layer(r1, r2)
    np.testing.assert_allclose(r1 / s, np.sqrt(r1 * r2), rtol=1e-9)
    np.testing.assert_allclose(r2 * s, np.sqrt(r1 * r2), rtol=1e-9)


def test_a_channel_that_one_side_does_not_use_stays() -> None:
    np.testing.assert_array_equal(
        cross_layer(np.array([0.0, 3.0, 0.0]), np.array([2.0, 0.0, 0.0])), 1
    )
    assert cross_layer(np.array([1e30]), np.array([1e-30])) <= 2.0**5  # within FP16, squared too


def scaled(
    layers: list[np.ndarray], links: list[LayerLink], factors: list[np.ndarray]
) -> list[np.ndarray]:
    found = [layer.copy() for layer in layers]
    for link, s in zip(links, factors, strict=True):
        for layer, made in link.producers:
            found[layer] = found[layer] / np.where(made < 0, 1, s[made])[:, None]
        for layer in link.consumers:
            found[layer] = found[layer] * s[None, :]
    return found


@given(st.integers(0, 300), st.lists(st.integers(1, 6), min_size=3, max_size=5))
def test_a_chain_settles_where_all_links_are_even(seed: int, widths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    layers = [rng.lognormal(0, 1, (o, i)) for i, o in pairwise(widths)]
    links = [
        LayerLink(width, ((index, np.arange(width)),), (index + 1,))
        for index, width in enumerate(widths[1:-1])
    ]
    after = scaled(layers, links, converge(layers, links))
    for link in links:
        r1, r2 = ranges(after, link)
        np.testing.assert_allclose(r1, r2, rtol=1e-2)


def test_producers_may_share_a_value_and_make_part_of_it() -> None:
    """Two layers are joined; one also makes an output that goes elsewhere (-1)."""
    layers = [np.array([[8.0], [2.0]]), np.array([[4.0], [1e3]]), np.array([[0.5, 0.5, 1.0]])]
    link = LayerLink(3, ((0, np.array([0, 1])), (1, np.array([2, -1]))), (2,))
    (s,) = converge(layers, [link])
    np.testing.assert_allclose(s, [4, 2, 2])
    after = scaled(layers, [link], [s])
    np.testing.assert_allclose(after[1], [[2.0], [1e3]])


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(1, 3, 4), (2, 3, 2), (5, 1, 1)])
def test_magnitudes_see_only_their_group(groups: int, inputs: int, outputs: int) -> None:
    kernel = np.random.default_rng(0).standard_normal((groups, inputs, outputs, 9))
    found = magnitudes(kernel)
    assert found.shape == (groups * outputs, groups * inputs)
    for o in range(groups * outputs):
        for i in range(groups * inputs):
            g = o // outputs
            inside = i // inputs == g
            wanted = np.abs(kernel[g, i % inputs, o % outputs]).max() if inside else 0.0
            assert found[o, i] == wanted


def test_the_error_of_one_scale_falls_when_outputs_agree() -> None:
    rng = np.random.default_rng(1)
    kernel = rng.standard_normal((1, 16, 8, 9)).astype(np.float32)
    uneven = np.exp(rng.normal(0, 2, 8)).astype(np.float32)
    producers = [(kernel * uneven[None, None, :, None], np.arange(8))]
    # what each output means to its readers: as much as every other
    importance = 1.0 / np.square(uneven.astype(np.float64))
    before = producers_error(producers, importance, ONE, None)
    after = producers_error(producers, importance, ONE, uneven)
    assert after < before / 10
    plain = np.abs(kernel).max() / 127
    codes = np.rint(kernel / plain)
    expected = np.square(codes * plain - kernel).sum() / np.square(kernel).sum()
    assert after == pytest.approx(expected, rel=0.05)
