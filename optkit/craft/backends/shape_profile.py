"""Input shapes at the minimum, optimum and maximum of every dynamic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optkit.facts.errors import UsageError
from optkit.facts.tensors import AxisRange, TensorInfo, axes_of, size_of

Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]


def profile(inputs: Sequence[TensorInfo], axes: Mapping[str, AxisRange]) -> Profile:
    """Input name → (min, opt, max) shapes; a fixed dimension has the same size in all three.

    Raises UsageError for an axis without a range, or with a range that is not 0 ≤ min ≤ opt ≤ max.
    """
    for name, span in axes.items():
        if not (0 <= span.min <= span.opt <= span.max and span.max):
            raise UsageError(
                f"min {span.min}, opt {span.opt}, max {span.max} must be 0 ≤ min ≤ opt ≤ max > 0",
                where=f"axis {name!r}",
            )
    return {
        tensor.name: (
            _shape(tensor, axes, "min"),
            _shape(tensor, axes, "opt"),
            _shape(tensor, axes, "max"),
        )
        for tensor in inputs
    }


def batch(found: Mapping[str, tuple[Shape, Shape, Shape]]) -> int | None:
    """The optimal size of axis 0 of the first input that has axes; None if no input has axes."""
    return next((opt[0] for _, opt, _ in found.values() if opt), None)


def _shape(tensor: TensorInfo, axes: Mapping[str, AxisRange], end: str) -> Shape:
    sizes = {axis: int(getattr(_span(tensor, axes, axis), end)) for axis in axes_of(tensor.shape)}
    return tuple(size_of(dim, sizes) for dim in tensor.shape)


def _span(tensor: TensorInfo, axes: Mapping[str, AxisRange], axis: str) -> AxisRange:
    if axis not in axes:
        raise UsageError(
            f"dynamic axis {axis!r} has no range",
            where=f"input {tensor.name!r}",
            hint=f"give one in the recipe: axes: {{{axis}: {{min: 1, opt: 8, max: 32}}}}",
        )
    return axes[axis]
