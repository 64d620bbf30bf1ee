"""What one node of a graph costs. Pure data: `graph.costs` counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCost:
    """One node at given axis sizes. `macs` is 0 for operators that do not multiply by a matrix;
    `macs`, `in_bytes`, `out_bytes` are None where a shape does not follow from the axes. `columns`:
    of a product's output as a matrix (channels of a convolution); `bits`: of one of its elements.
    """

    op: str
    macs: int | None
    weight_bytes: int
    in_bytes: int | None
    out_bytes: int | None
    columns: int | None = None
    bits: int | None = None
