"""Values as text: figures with their units, and untrusted names in a safe form.

Names of models, nodes and tensors may come from strangers. `name` removes characters that control a
terminal or reorder a line. The writers of HTML and Markdown also escape their text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import log10
from typing import TYPE_CHECKING

from optkit.facts.printable import visible

if TYPE_CHECKING:
    from optkit.facts.documents.measured import BuildFacts
    from optkit.facts.documents.report import TensorFidelity
    from optkit.facts.documents.result import LandingCounts
    from optkit.facts.measurement import Fidelity, Latency

NONE = "–"
_LONGEST, _LONGEST_ADVICE = 400, 8000

_VARYING = 1e-3
"""The share of the outputs' power that differs between samples. At this share, the mean output for
every input has an SQNR of 30 dB. Measured: 0.85 to 0.98 for the classifiers of the examples,
0.015 for their detector, whose boxes are pixels, and 5e-16 for YOLOv8n with random weights."""


def name(value: object) -> str:
    """One line of visible text: control, format and surrogate characters become U+FFFD."""
    return _line(value, _LONGEST)


def advice(sentences: str) -> str:
    """As `name`, for the sentences of a recommendation, whose end says what to do."""
    return _line(sentences, _LONGEST_ADVICE)


def _line(value: object, most: int) -> str:
    text = " ".join(str(value).split())
    return visible(text if len(text) <= most else text[: most - 1] + "…")


def measured(latency: Latency | BuildFacts | None) -> str | None:
    """When and where a latency was measured, and whether before the present command; None if it was
    not measured, or its date is unknown."""
    if latency is None or latency.measured_at is None:
        return None
    when = latency.measured_at[:16].replace("T", " ")  # to the minute
    stored = ", from the store" if latency.from_store else ""
    return name(f"measured {when} UTC on {latency.machine}{stored}")


def ms(value: float | None) -> str:
    """Milliseconds; less than a thousandth of one in microseconds."""
    if value is not None and 0 < abs(value) < 1e-3:
        return f"{_digits(value * 1e3)} µs"
    return NONE if value is None else f"{_digits(value)} ms"


def decibels(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f} dB"


def likeness(known: TensorFidelity) -> str:
    """Cosine and largest error of a tensor, which complement its SQNR."""
    return f"cosine {known.cosine:.6f}, largest error {_digits(known.max_abs_error)}"


def sqnr(fidelity: Fidelity) -> str:
    """`0.0 dB`: of the worst output."""
    if fidelity.all_zero:
        return "all outputs are zero, in both"
    found = fidelity.worst.sqnr_db
    return "bit-equal" if found is None else decibels(found)


def at_worst(fidelity: Fidelity) -> str:
    """`output 'seg', all outputs together 34.4 dB`; empty for a single output."""
    if not fidelity.where or fidelity.sqnr_db is None:
        return ""
    return f"{name(fidelity.where)}, all outputs together {decibels(fidelity.sqnr_db)}"


def unvaried(fidelity: Fidelity) -> str | None:
    """A doubt about the fidelity of outputs that hardly depend on the input, as those of random
    weights may; None if there is none."""
    share = fidelity.varying
    if share is None or share > _VARYING:
        return None
    constant = (
        "" if share == 0 else f", and their mean has an SQNR of {decibels(-10 * log10(share))}"
    )
    return (
        f"the outputs hardly depend on the input (of their power, {share:.1g} differs between "
        f"samples{constant}), so the fidelity to {fidelity.reference} says little"
    )


def landed(landing: LandingCounts) -> str:
    """How many planned nodes run as planned, and for how many the compiler does not report it."""
    counts = f"{landing.landed} of {landing.planned}"
    return f"{counts}, {landing.unknown} unknown" if landing.unknown else counts


def rate(value: float | None) -> str:
    return NONE if value is None else f"{_digits(value)} /s"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in binary units."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} GiB"


def percent(fraction: float | None) -> str:
    return NONE if fraction is None else f"{round(100 * fraction, 2) + 0.0:.2f} %"


def shown(value: object) -> str:
    """A value whose kind is not known: text as it is, the rest as JSON."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def points(fraction: float | None) -> str:
    """A difference of two proportions, in percentage points."""
    return NONE if fraction is None else f"{round(100 * fraction, 2) + 0.0:.2f} points"


def times(ratio: float) -> str:
    return f"{ratio:.2f}×"


def number(value: float | None) -> str:
    return NONE if value is None else _digits(value)


def dollars(value: float | None) -> str:
    return NONE if value is None else f"${plain(value)}"


def plain(value: float, digits: int = 3) -> str:
    """So many significant digits, or all before the point, never with an exponent: amounts of money
    are read as decimals."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def span(interval: Sequence[float] | None, show: Callable[[float], str]) -> str:
    """`low to high`, each end shown by `show`, the unit once; empty without an interval."""
    if interval is None:
        return ""
    low, high = show(interval[0]), show(interval[1])
    digits, _, unit = low.partition(" ")
    return f"{digits if high.endswith(f' {unit}') else low} to {high}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent for everyday sizes."""
    if value and abs(value) < 1e-3:
        return f"{value:.2e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
