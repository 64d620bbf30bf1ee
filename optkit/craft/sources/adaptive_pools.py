"""torch's adaptive pools, and `area` interpolation, over axes of free size.

Window i of n over an axis of size s is [floor(i·s / n), ceil((i + 1)·s / n)). torch's decomposition
asks while it is traced whether n divides s, and the graph then holds only for sizes of that kind.
Here the windows are arithmetic on the size: one axis after the other, their elements are gathered,
[n, longest], and reduced. A mean is that of the gathered row, with zeros behind the window, times
longest / length: no sum leaves the range of FP16, and no infinity leaves its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optkit.craft.sources import export_failures
from optkit.facts.errors import ExportFailed

if TYPE_CHECKING:
    from torch import Tensor, fx
    from torch.export import ExportedProgram

Size = Any
"""An int, or a SymInt of torch."""


@contextmanager
def open_bins() -> Iterator[None]:
    """During the body, `adaptive_…_pool…d` of `torch.nn.functional` with a free number of windows
    is lookups and reductions: torch would fix the number, or ask whether it is 1."""
    from torch.nn import functional

    originals = {
        f"adaptive_{kind}_pool{axes}d": (axes, pool)
        for kind, pool in (("avg", means), ("max", maxima))
        for axes in (1, 2, 3)
    }
    before = {name: getattr(functional, name) for name in originals}
    for name, (axes, pool) in originals.items():
        setattr(functional, name, _for_open_bins(before[name], axes, pool))
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(functional, name, original)


def _for_open_bins(
    original: Callable[..., Any], axes: int, pool: Callable[..., Tensor]
) -> Callable[..., Any]:
    """A pool of torch over the last `axes` axes, except for a free number of windows."""

    def adaptive_pool(
        input: Tensor, output_size: Any, return_indices: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        given = output_size if isinstance(output_size, Sequence) else [output_size] * axes
        sizes = input.shape[-axes:]
        bins = [size if n is None else n for n, size in zip(given, sizes, strict=True)]
        if return_indices or all(isinstance(n, int) for n in bins):
            flags = {"return_indices": True} if return_indices else {}
            result: Tensor | tuple[Tensor, Tensor] = original(input, output_size, **flags)
            return result
        return pool(input, bins)

    return adaptive_pool


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program with pools over free sizes as lookups and reductions. Unchanged if it has none.

    Raises ExportFailed if the indices of such a maximum are used.
    """
    import torch

    pools: dict[object, tuple[int, Callable[..., object]]] = {}
    for axes in (1, 2, 3):
        pools[getattr(torch.ops.aten, f"adaptive_avg_pool{axes}d").default] = (axes, means)
        pools[getattr(torch.ops.aten, f"adaptive_max_pool{axes}d").default] = (axes, _largest)
    found = {
        node: node.target
        for node in program.graph.nodes
        if node.target in pools and _needs_windows(node, *pools[node.target])
    }
    if not found:
        return program
    try:
        for node, target in found.items():
            node.target = pools[target][1]
            if node.target is _largest:
                _require_no_indices(node)
        # tracing the program again takes the operators of these functions into it
        traced: ExportedProgram = program.run_decompositions({})
        return traced
    finally:
        for node, target in found.items():
            node.target = target


def means(x: Tensor, bins: Sequence[Size]) -> Tensor:
    """aten::adaptive_avg_pool: [… sizes] → [… bins]."""
    for axis, count in zip(range(-len(bins), 0), bins, strict=True):
        x = _means_of_windows(x, axis, count)
    return x


def maxima(x: Tensor, bins: Sequence[Size]) -> Tensor:
    """The first result of aten::adaptive_max_pool: [… sizes] → [… bins]."""
    for axis, count in zip(range(-len(bins), 0), bins, strict=True):
        x = _maxima_of_windows(x, axis, count)
    return x


def _largest(x: Tensor, bins: Sequence[Size]) -> tuple[Tensor, Tensor]:
    """aten::adaptive_max_pool; its second result is not used."""
    found = maxima(x, bins)
    return found, found


def _needs_windows(node: fx.Node, axes: int, pool: Callable[..., object]) -> bool:
    """Whether torch's own decomposition would be for the traced sizes only, or whether there is
    none: for windows of several sizes there are only means over one and two axes."""
    sizes, bins = node.args[0].meta["val"].shape[-axes:], node.args[1]  # type: ignore[union-attr]
    if all(isinstance(n, int) and n == 1 for n in bins):  # type: ignore[union-attr]
        return False
    if any(not isinstance(size, int) for size in sizes):
        return True
    lacks = pool is _largest or axes == 3
    return lacks and any(s % n for s, n in zip(sizes, bins, strict=True))  # type: ignore


def _require_no_indices(node: fx.Node) -> None:
    if any(user.args[1] == 1 and user.users for user in node.users):
        path, place = export_failures.module_and_line(node)
        raise ExportFailed(
            f"{path} returns the indices of an adaptive maximum over windows "
            "of several sizes, for which ONNX has no operator",
            where=place,
            hint="fix the axis where axes are declared, at a size that its windows divide, or use "
            "only the maxima",
        )


def _means_of_windows(x: Tensor, axis: int, bins: Size) -> Tensor:
    import torch

    if _equal(bins, x.shape[axis]):
        return x
    if _equal(bins, 1):
        return x.mean(axis, keepdim=True)
    begin, length, longest = _windows(x, axis, bins)
    places = torch.arange(longest, device=x.device)
    inside = _beside(places < length.unsqueeze(1), axis)
    rows = torch.where(inside, _gathered(x, axis, begin, length, longest), 0)
    share = longest / length.to(x.dtype)
    return rows.mean(axis) * _beside(share, axis)


def _maxima_of_windows(x: Tensor, axis: int, bins: Size) -> Tensor:
    if _equal(bins, x.shape[axis]):
        return x
    if _equal(bins, 1):
        return x.amax(axis, keepdim=True)
    return _gathered(x, axis, *_windows(x, axis, bins)).amax(axis)


def _equal(bins: Size, size: Size) -> bool:
    """Whether two sizes are equal in every call."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(bins == size)


def _windows(x: Tensor, axis: int, bins: Size) -> tuple[Tensor, Tensor, Size]:
    """Where each window begins, its length, both [bins], and a length that none exceeds."""
    import torch

    size = x.shape[axis]
    places = torch.arange(bins, device=x.device)
    begin = places * size // bins
    end = ((places + 1) * size + (bins - 1)) // bins
    return begin, end - begin, size // bins + 2


def _gathered(x: Tensor, axis: int, begin: Tensor, length: Tensor, longest: Size) -> Tensor:
    """The elements of the windows, [… bins, longest …]: a shorter one repeats its last element."""
    import torch

    places = torch.arange(longest, device=x.device)
    index = begin.unsqueeze(1) + torch.minimum(places, length.unsqueeze(1) - 1)
    return torch.unflatten(x.index_select(axis, index.flatten()), axis, index.shape)


def _beside(values: Tensor, axis: int) -> Tensor:
    """Values of the axis, to be broadcast over the axes behind it."""
    return values.reshape(*values.shape, *[1] * (-axis - 1))
