"""Cross-layer equalization: give two consecutive layers the same range, channel by channel.

    W2 f(W1 x + b1) = (W2 S) f(S⁻¹ W1 x + S⁻¹ b1)        f(t u) = t f(u) for t > 0
    s_i = sqrt(r1_i / r2_i)                              then both ranges are sqrt(r1_i r2_i)

(Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction",
arXiv:1906.04721, section 4.1.) It needs no data, and makes one scale per weight tensor accurate
enough. Weights with a scale per output channel gain from the ranges of the activation instead:
`smoothquant`. The functions work on arrays: layers are given as the largest magnitudes [outputs,
inputs] of their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optkit.craft.quantization.rescaling.smoothquant import Formats, rounded

_SWEEPS = 50
_SETTLED = 1e-4
_MOST = 2.0**10  # ratio of ranges above which a channel counts as unused


@dataclass(frozen=True)
class LayerLink:
    """A value between layers. `producers`: index of a layer and, for each of its outputs, the
    channel of the value that it computes (-1: none). `consumers`: layers that read all channels."""

    channels: int
    producers: tuple[tuple[int, np.ndarray], ...]
    consumers: tuple[int, ...]


def cross_layer(r1: np.ndarray, r2: np.ndarray) -> np.ndarray:
    """s [K] by which the value between two layers is divided: sqrt(r1 / r2), float64.

    `r1`, `r2` [K]: the largest weights that compute a channel, and that read it. A channel that one
    of the two does not use keeps its scale.
    """
    live = (r1 > 0) & (r2 > 0)
    ratio = np.divide(r1, r2, out=np.ones(np.shape(r1)), where=live)
    s: np.ndarray = np.sqrt(np.clip(ratio, 1 / _MOST, _MOST))
    return s


def converge(layers: Sequence[np.ndarray], links: Sequence[LayerLink]) -> list[np.ndarray]:
    """s [channels] for each link, after as many passes over the links as s needs to converge.

    `layers`: magnitudes [outputs, inputs], zero if an output does not read an input.
    """
    state = [layer.astype(np.float64) for layer in layers]
    total = [np.ones(link.channels) for link in links]
    for _ in range(_SWEEPS):
        moved = 0.0
        for index, link in enumerate(links):
            s = cross_layer(*ranges(state, link))
            _apply(state, link, s)
            total[index] *= s
            moved = max(moved, float(np.abs(np.log(s)).max(initial=0.0)))
        if moved < _SETTLED:
            break
    return total


def ranges(layers: Sequence[np.ndarray], link: LayerLink) -> tuple[np.ndarray, np.ndarray]:
    """(r1, r2) [channels]: the largest weights that compute each channel, and that read it."""
    r1, r2 = np.zeros(link.channels), np.zeros(link.channels)
    for layer, channel in link.producers:
        used = channel >= 0
        np.maximum.at(r1, channel[used], layers[layer].max(axis=1, initial=0.0)[used])
    for layer in link.consumers:
        np.maximum(r2, layers[layer].max(axis=0, initial=0.0), out=r2)
    return r1, r2


def magnitudes(kernel: np.ndarray) -> np.ndarray:
    """[outputs, inputs] of a kernel [groups, inputs, outputs, taps]; zero across groups."""
    count, inputs, outputs, _ = kernel.shape
    largest = np.abs(kernel).max(axis=3, initial=0.0)  # [groups, inputs, outputs]
    dense = np.zeros((count, outputs, count, inputs), np.float64)
    diagonal = np.arange(count)
    dense[diagonal, :, diagonal, :] = largest.swapaxes(1, 2)
    return dense.reshape(count * outputs, count * inputs)


def producers_error(
    producers: Sequence[tuple[np.ndarray, np.ndarray]],
    importance: np.ndarray,
    formats: Formats,
    s: np.ndarray | None,
) -> float:
    """Noise power over signal power of the weights that compute a value, if it is divided by `s`
    [K].

    producers: kernel [groups, inputs, outputs, taps] and the channel of each output. With one scale
    per tensor, the rounding error of an output depends on the division of all others. importance
    [K]: the weight of an error in each channel before the division.
    """
    total = 0.0
    for kernel, channel in producers:
        count, _, outputs, _ = kernel.shape
        divisor = np.ones(channel.size) if s is None else np.where(channel < 0, 1.0, s[channel])
        weight = np.where(channel < 0, importance.mean(), importance[channel])
        along = divisor.reshape(count, 1, outputs, 1).astype(np.float32)
        error = rounded(kernel / along, formats) * along - kernel
        noise, power = (
            float((np.square(a, dtype=np.float64).sum(axis=(1, 3)).reshape(-1) * weight).sum())
            for a in (error, kernel)
        )
        total += noise / power if power else 0.0
    return total


def _apply(state: list[np.ndarray], link: LayerLink, s: np.ndarray) -> None:
    for layer, channel in link.producers:
        state[layer] /= np.where(channel < 0, 1.0, s[channel])[:, None]
    for layer in link.consumers:
        state[layer] *= s[None, :]
