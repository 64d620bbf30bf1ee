"""The forms of a product whose activation needs more than one scale, and which of them is fastest.

two terms           x ≈ s1·q1 + s2·q2: two integer products, and their sum
int8-weight-only    MatMulNBits: the kernel rounds each row of the activation in blocks
float               the product as it was

All of them are accurate enough (see `noisy_nodes`). How fast they are depends on the instruction
set: AMX multiplies codes eight times as fast as floats, and MatMulNBits has no kernel for it; with
AVX2 alone two integer products take longer than one of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from optkit.craft.quantization.placement import weighted_nodes
from optkit.facts.placement import KernelSpeeds, ProductForm, ProductSpeeds

MARGIN = 1.25
"""Two terms must be that much faster, because the speeds are those of one core: more cores hardly
share conversions and sums (docs/studies/noisy_products.md)."""


@dataclass(frozen=True)
class Products:
    """The products that read one activation. `rows`: of the activation; None: not known.
    `summed`: elements of a row; `columns`: those of all products together."""

    rows: int | None
    summed: int
    columns: int

    def ns(self, form: ProductForm, speeds: ProductSpeeds) -> float:
        """Nanoseconds per row on one core, where the rows are many."""
        macs = self.summed * self.columns
        first = self.summed * speeds.first_term_ns + macs / speeds.int8_gmacs
        second = self.summed * speeds.second_term_ns + macs / speeds.int8_gmacs
        each = {
            "int8": first,
            "two terms": first + second + self.columns * speeds.terms_sum_ns,
            "int8-weight-only": macs / speeds.blocks_gmacs,
            "float": macs / speeds.float_gmacs,
        }
        return each[form]

    def slower(self, form: ProductForm, speeds: KernelSpeeds | None) -> float:
        """Nanoseconds that all rows (one, if their number is not known) take longer than with one
        scale; without speeds their multiply-adds."""
        rows = self.rows or 1
        if speeds is None:
            return rows * self.summed * self.columns
        return rows * (self.ns(form, speeds.product) - self.ns("int8", speeds.product))


def products(value: ir.Value, nodes: Iterable[ir.Node], sizes: Mapping[str, int]) -> Products:
    """The products of these nodes, which multiply `value`. `sizes`: of named axes."""
    each = list(nodes)
    weights = [weighted_nodes.constant(node).shape for node in each]
    summed = weighted_nodes.summed(each[0])
    columns = sum(prod(shape.numpy()) // summed for shape in weights if shape is not None)
    return Products(_rows(value, sizes), summed, columns)


def _rows(value: ir.Value, sizes: Mapping[str, int]) -> int | None:
    if value.shape is None:
        return None
    rows = [size if isinstance(size, int) else sizes.get(str(size)) for size in value.shape][:-1]
    known = [size for size in rows if size is not None]
    return prod(known) if len(known) == len(rows) else None


_FORMS: tuple[ProductForm, ...] = ("two terms", "int8-weight-only", "float")
BY_BLOCKS: tuple[ProductForm, ...] = ("int8-weight-only", "float")
"""The forms in which no scale of the activation is fixed."""


def fastest(
    read: Products, speeds: KernelSpeeds | None, forms: Sequence[ProductForm] = _FORMS
) -> tuple[ProductForm, str]:
    """The one of these forms that takes least, and why."""
    if speeds is None:
        return "int8-weight-only", "how fast this device runs other forms is not known"
    if read.rows == 1:
        return "int8-weight-only", "of a single row it reads the fewest bytes"
    taken = {form: read.ns(form, speeds.product) for form in forms}
    form = min(forms, key=lambda one: taken[one] * (MARGIN if one == "two terms" else 1))
    told = ", ".join(f"{one} {taken[one] / 1000:.3g} µs" for one in forms)
    return form, f"per row on one core with the kernels of {speeds.source}: {told}"
