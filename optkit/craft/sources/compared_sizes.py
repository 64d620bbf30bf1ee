"""The sizes at which an exported graph is compared with its model.

An error of an export may show at some sizes only: an axis that was fixed while tracing, a pool
whose windows fit one feature map, a padding that is right for even sizes. So the sizes are the ends
of each range, corners in which one axis is at its end and the others at the opposite one, and sizes
in between, spread over the whole range of each axis, so that the feature maps behind strides differ
too and no two axes move together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optkit.craft.sources.dynamic_axes import traced_sizes
from optkit.facts.tensors import AxisRange

_BETWEEN = 6  # places between the ends
_FEW = 3  # samples in a batch, where its size is not what is compared
_CORNERS = 4  # axes of which each is at one end alone

Sizes = dict[str, int]


def compared_sizes(axes: Mapping[str, AxisRange], batch: str | None) -> list[Sizes]:
    """Sizes of all axes, each choice once, the most important ones first. `batch`: the axis of the
    samples, of which few are taken except at the ends of all axes."""
    least = {name: axis.min for name, axis in axes.items()}
    most = {name: axis.max for name, axis in axes.items()}
    found = [least, *_apart(axes, batch), *_corners(axes, batch), most]
    return [sizes for index, sizes in enumerate(found) if sizes not in found[:index]]


def _apart(axes: Mapping[str, AxisRange], batch: str | None) -> Iterator[Sizes]:
    """Other sizes than in tracing, then places between the ends: on the scale of ratios, because a
    range may go from 1 to 65,536. Those of the axes are shifted against each other by the additive
    recurrence with the inverse powers of the plastic number's generalization (Roberts, "The
    unreasonable effectiveness of quasirandom sequences", 2018)."""
    others = [name for name in axes if name != batch]
    traced = traced_sizes(axes)
    yield {name: _beside(axis, traced[name]) for name, axis in axes.items()}
    ratio = _ratio(len(others))
    for turn in range(1, _BETWEEN + 1 if others else 1):
        sizes = {
            name: _between(axes[name], (0.5 + turn / ratio ** (index + 1)) % 1)
            for index, name in enumerate(others)
        }
        yield {name: sizes.get(name, _few(axis, turn)) for name, axis in axes.items()}


def _corners(axes: Mapping[str, AxisRange], batch: str | None) -> Iterator[Sizes]:
    """All axes at their largest size, with few samples; then each axis alone at one of its ends."""
    others = [name for name in axes if name != batch]
    few = {name: _few(axes[name], 2) for name in axes if name == batch}
    yield {name: few.get(name, axis.max) for name, axis in axes.items()}
    if len(others) < 2:
        return
    for alone in others[:_CORNERS]:
        for low in (True, False):
            yield {
                name: few.get(name, axis.min if (name == alone) is low else axis.max)
                for name, axis in axes.items()
            }


def _beside(axis: AxisRange, traced: int) -> int:
    near = (n for n in (traced + 1, traced - 1) if axis.min <= n <= axis.max)
    return next(near, traced)


def _few(axis: AxisRange, turn: int) -> int:
    return min(axis.max, max(axis.min, 1) + turn % _FEW)


def _between(axis: AxisRange, share: float) -> int:
    low = max(axis.min, 1)
    return min(axis.max, round(low * float((axis.max / low) ** share)))


def _ratio(count: int) -> float:
    """The root of x ** (count + 1) = x + 1: the golden number, the plastic number, …"""
    x = 2.0
    for _ in range(32):
        x = float((1 + x) ** (1 / (count + 1)))
    return x
