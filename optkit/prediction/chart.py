"""A plan as a roofline plot: one SVG, or an HTML page around it, that loads nothing else.

Both axes are logarithmic: operations per byte against operations per second. A target has a slope
(its bandwidth) and one roof per precision (its dense peak); a point is a predicted call or step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from optkit.devices import target as find_target
from optkit.precisions import precision
from optkit.prediction.layers import multiplies_in

_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 250, 40, 60
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
_RADIUS = 5


def html(plan: Mapping[str, Any]) -> str:
    title = escape(f"optkit plan: {plan['model']['name']}")
    advice = "".join(f"<li>{escape(line)}</li>" for line in plan["advice"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;"
        "padding:0 1em}svg{max-width:100%;height:auto}</style></head>"
        f"<body><h1>{title}</h1><p>All figures are predicted.</p>{svg(plan)}<ul>{advice}</ul>"
        "</body></html>\n"
    )


def svg(plan: Mapping[str, Any]) -> str:
    """The drawing. Needs one row with figures at least."""
    rows = [row for row in plan["results"] if row["latency"]]
    points = [
        (row, one, *_at(one))
        for row in rows
        for one in row["latency"]
        if one["operations"] and one["bytes"]  # a logarithm has no place for others
    ]
    roofs = _roofs(rows)
    x = _Axis([p[2] for p in points] + [peak / band for *_, peak, band in roofs], _LEFT,
              _WIDTH - _RIGHT)  # fmt: skip
    y = _Axis([p[3] for p in points] + [peak for *_, peak, _ in roofs], _HEIGHT - _BOTTOM, _TOP)
    colours = dict(zip(dict.fromkeys(row["target"] for row in rows), _COLOURS * 5, strict=False))
    parts = [*_grid(x, y)]
    below = 0.0  # the last label: highest roof first, no two on each other
    for name, label, peak, band in sorted(roofs, key=lambda roof: -roof[2]):
        low = max(x.low, y.low / band)
        corner = peak / band
        path = f"M{x.at(low):.1f},{y.at(low * band):.1f}L{x.at(corner):.1f},{y.at(peak):.1f}"
        path += f"L{x.at(x.high):.1f},{y.at(peak):.1f}"
        parts.append(f'<path d="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
        below = max(y.at(peak) + 4, below + 13)
        parts.append(_text(x.at(x.high) + 6, below, f"{name} {label}", colours[name]))
    for row, one, intensity, rate in points:
        told = (
            f"{row['target']} {row['precision']} batch {one['batch']}: {one['p50_ms']:.4g} ms "
            f"[{one['band'][0]:.4g}, {one['band'][1]:.4g}], predicted"
        )
        parts.append(
            f'<circle cx="{x.at(intensity):.1f}" cy="{y.at(rate):.1f}" r="{_RADIUS}" '
            f'fill="{colours[row["target"]]}" fill-opacity="0.6"><title>{escape(told)}</title>'
            "</circle>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _at(one: Mapping[str, Any]) -> tuple[float, float]:
    """Operations per byte and per second."""
    return one["operations"] / one["bytes"], one["operations"] / one["p50_ms"] * 1e3


def _roofs(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float, float]]:
    """(target, dtypes of one peak, peak, bandwidth), each peak once."""
    found: dict[tuple[str, float, float], list[str]] = {}
    for row in rows:
        device = find_target(row["target"])
        dtype = multiplies_in(precision(row["precision"]))
        peak = device.peak(dtype)
        if peak is not None and device.bandwidth is not None:
            named = found.setdefault((device.name, peak, device.bandwidth), [])
            if dtype not in named:
                named.append(dtype)
    return [(name, "/".join(dtypes), peak, band) for (name, peak, band), dtypes in found.items()]


class _Axis:
    """Logarithmic, over whole decades."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.first, self.last = floor(log10(min(values))), ceil(log10(max(values)))
        self.last = max(self.last, self.first + 1)
        self.low, self.high = 10.0**self.first, 10.0**self.last
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (log10(value) - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for decade in range(x.first, x.last + 1):
        at = x.at(10.0**decade)
        parts.append(f'<path d="M{at:.1f},{y.start}V{y.end}" stroke="#ddd"/>')
        parts.append(_text(at, y.start + 18, f"{10.0**decade:g}", "#444", "middle"))
    for decade in range(y.first, y.last + 1):
        at = y.at(10.0**decade)
        parts.append(f'<path d="M{x.start},{at:.1f}H{x.end}" stroke="#ddd"/>')
        parts.append(_text(x.start - 8, at + 4, f"{10.0 ** (decade - 12):g}", "#444", "end"))
    middle = (x.start + x.end) / 2
    parts.append(_text(middle, y.start + 42, "operations per byte", "#444", "middle"))
    parts.append(_text(x.start, y.end - 16, "TFLOP/s (TOP/s), predicted", "#444", "middle"))
    return parts


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"
