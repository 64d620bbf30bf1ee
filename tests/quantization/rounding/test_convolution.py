"""Convolutions solved as matrices of patches, and their biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.rounding import bias_correction, convolution
from optkit.facts.precisions import NumberFormat
from optkit.ground.recipe import Quantization
from optkit.ground.statistics import Window
from tests.networks import RESIDUAL, feed, network

CHANNELS = 8


def smooth_images(count: int, seed: int) -> np.ndarray:
    """Images whose neighbouring pixels are alike and positive, [n, C, 10, 10], float32."""
    noise = np.random.default_rng(seed).standard_normal((count, CHANNELS, 12, 12))
    blurred = sum(noise[:, :, i : i + 10, j : j + 10] for i in range(3) for j in range(3))
    return np.maximum(np.asarray(blurred), 0).astype(np.float32)


def patches(x: np.ndarray, window: Window) -> np.ndarray:
    """[n * positions, groups, K]"""
    rows = np.moveaxis(window.view(x), 1, 3)
    return rows.reshape(-1, window.groups, window.size(CHANNELS))


def product(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.einsum("ngk,gko->ngo", rows, weights).reshape(len(rows), -1)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
def test_a_solved_kernel_loses_less_on_other_data(granularity: Any, groups: int) -> None:
    window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), groups)
    fmt = NumberFormat("int8", granularity, symmetric=True)
    random = np.random.default_rng(0)
    kernel = random.standard_normal((16, CHANNELS // groups, 3, 3)).astype(np.float32)
    seen, other = (patches(smooth_images(60, seed), window) for seed in (1, 2))
    moments = np.einsum("ngi,ngj->gij", seen, seen, dtype=np.float64) / len(seen)
    axis = None if granularity == "tensor" else 0
    scale = scales.weight_scale(kernel, axis, fmt, np.float32)
    solved = convolution.solve(kernel, scale, fmt, list(moments), 0.01)
    rounded = scales.quantize(kernel, scale, fmt, axis)
    assert solved.shape == kernel.shape and solved.dtype == rounded.dtype
    exact = product(other, convolution.matrices(kernel, groups))
    lost = [
        np.square(product(other, convolution.dequantized(c, scale, fmt, groups)) - exact).sum()
        for c in (solved, rounded)
    ]
    assert lost[0] < 0.8 * lost[1]


@pytest.mark.parametrize("groups", [1, 4])
def test_a_corrected_bias_leaves_no_mean_error(groups: int) -> None:
    window = Window((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), groups)
    activation = NumberFormat("int8", "tensor", symmetric=True)
    weight = NumberFormat("int4", "channel", symmetric=True)  # coarse: errors are seen well
    kernel = np.random.default_rng(0).standard_normal((8, CHANNELS // groups, 3, 3))
    kernel = kernel.astype(np.float32)
    rows, other = (patches(smooth_images(400, seed), window) for seed in (1, 2))
    x = scales.activation_scale(0.0, float(rows.max()), activation, np.float32)
    held, held_other = (
        scales.dequantize(scales.quantize(part, x, activation), x) for part in (rows, other)
    )
    scale = scales.weight_scale(kernel, 0, weight, np.float32)
    codes = scales.quantize(kernel, scale, weight, 0)
    w = convolution.matrices(kernel, groups)
    w_hat = convolution.dequantized(codes, scale, weight, groups)
    delta = bias_correction.correction(rows, w, held, w_hat).reshape(-1)
    plain = (product(other, w) - product(held_other, w_hat)).mean(axis=0)
    corrected = plain - delta
    assert np.abs(corrected).max() < 0.2 * np.abs(plain).max()


def test_the_matrices_of_a_kernel_multiply_patches_like_torch() -> None:
    torch = pytest.importorskip("torch")
    window = Window((3, 2), (2, 1), (1, 0, 1, 2), (1, 2), groups=2)
    x = smooth_images(2, 0)
    kernel = np.random.default_rng(0).standard_normal((6, 4, 3, 2)).astype(np.float32)
    found = product(patches(x, window), convolution.matrices(kernel, 2))
    (top, bottom), (left, right) = window.padding(x.shape[2:])
    padded = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(
        padded, torch.from_numpy(kernel), stride=(2, 1), dilation=(1, 2), groups=2
    )
    rows = expected.numpy().transpose(0, 2, 3, 1).reshape(-1, 6)
    np.testing.assert_allclose(found, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_small_network_gains_from_both(kind: str, workshop: Any) -> None:
    model = network(RESIDUAL)
    other = feed(model, batch=64, seed=5)
    exact = workshop.run(model, other)["y"]
    lost = {}
    for weights, corrected in (("rtn", False), ("rtn", True), ("auto", True)):
        wanted = Quantization(weights=weights, bias_correction=corrected)
        quantized, *_ = workshop.quantize(model, kind, settings=wanted)
        lost[weights, corrected] = workshop.run(quantized, other)["y"] - exact
    power = {key: float(np.square(error).mean()) for key, error in lost.items()}
    assert power["auto", True] < 0.9 * power["rtn", False]
    means = {key: float(np.square(error.mean(axis=0)).sum()) for key, error in lost.items()}
    assert means["rtn", True] < means["rtn", False]
