"""How much of a graph is quantized, in words."""

from __future__ import annotations

from optkit.facts.assignment import QuantizedProducts
from optkit.facts.documents.result import Result
from optkit.facts.precisions import PRECISIONS
from optkit.show.report import figures
from optkit.show.report.titles import spelled

_MOST_REASONS = 3
_LONG = 80  # characters of a reason: of a longer one only the kind is named
_FEW = 0.5  # of the products: below it the recommendation names the share


def nothing(result: Result) -> bool:
    """Whether a quantized precision was asked for and no product has it."""
    return result.quantized is not None and not result.quantized.quantized


def few(result: Result) -> bool:
    found = result.quantized
    return found is not None and found.quantized < _FEW * found.products


def share(found: QuantizedProducts, asked: str | None) -> str:
    """`3 of 102 products in INT8`; `40 in INT8 and 12 in INT4 of 60 products`. `asked`: the
    precision of the build."""
    counts = {
        name: count
        for name, count in found.by_precision.items()
        if name in PRECISIONS and PRECISIONS[name].quantized
    }
    if len(counts) < 2:
        name = next(iter(counts), asked)
        return f"{found.quantized} of {_products(found.products)} in {spelled(name)}"
    parts = " and ".join(f"{count} in {spelled(name)}" for name, count in counts.items())
    return f"{parts} of {_products(found.products)}"


def reasons(found: QuantizedProducts) -> str:
    """`in floats: 60 (its kernel is too large), 9 (…), 4 (2 other reasons)`; why there are none, if
    the graph has no product; empty if all are quantized."""
    if not found.products:
        return "the graph has no Conv, ConvTranspose, MatMul or Gemm with a constant weight"
    shown, others = found.in_float[:_MOST_REASONS], found.in_float[_MOST_REASONS:]
    parts = [f"{row.products} ({_short(row.reason) or 'no reason is known'})" for row in shown]
    if others:
        more = sum(row.products for row in others)
        parts.append(f"{more} ({len(others)} other reason{'s' * (len(others) > 1)})")
    return f"in floats: {', '.join(parts)}" if parts else ""


def told(result: Result) -> str:
    """How many products of a build are quantized, and why others are not; empty for floats."""
    return "" if result.quantized is None else line(result.quantized, result.precision)


def line(found: QuantizedProducts, asked: str | None) -> str:
    """Both in one line."""
    return "; ".join(filter(None, (share(found, asked), reasons(found))))


def _short(reason: str) -> str:
    """Without the particulars of a node, if they are long."""
    return figures.name(reason if len(reason) <= _LONG else reason.partition(": ")[0])


def _products(count: int) -> str:
    return f"{count} product{'' if count == 1 else 's'}"
