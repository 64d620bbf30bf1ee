"""Axes whose size differs between batches, because each batch is padded to its own longest sample.

They are dynamic in the graph of a module in memory, unless a recipe declares its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class PaddedAxis:
    """Axes with the same size in each batch. `places`: input and axis; `sizes`: of each batch."""

    name: str
    places: tuple[tuple[str, int], ...]
    sizes: tuple[int, ...]

    @property
    def range(self) -> dict[str, int]:
        """As in a recipe."""
        return {"min": min(self.sizes), "opt": median_high(self.sizes), "max": max(self.sizes)}

    @property
    def note(self) -> str:
        where = ", ".join(f"axis {axis} of {name}" for name, axis in self.places)
        return (
            f"{where}: the size differs between the batches, from {min(self.sizes)} to "
            f"{max(self.sizes)}, so it is dynamic in these limits; a recipe can declare others"
        )


def padded_axes(batches: Sequence[Shapes]) -> list[PaddedAxis]:
    """The axes whose size differs. The first batch is the example, which has every input; axis 0 of
    an input is the batch. An input that is missing elsewhere, or has another number of axes there,
    is refused later."""
    groups: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for name, shape in batches[0].items():
        seen = [batch[name] for batch in batches if name in batch]
        seen = [other for other in seen if len(other) == len(shape)]
        for axis in range(1, len(shape)):
            sizes = tuple(other[axis] for other in seen)
            if len(set(sizes)) > 1:
                groups.setdefault(sizes, []).append((name, axis))
    return [
        PaddedAxis("length" if not index else f"length_{index + 1}", tuple(places), sizes)
        for index, (sizes, places) in enumerate(groups.items())
    ]
