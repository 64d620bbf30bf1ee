"""The sentence about a plan of serving: which devices, how many, at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.serving_plan import ServingLimits, ServingRow
from optkit.facts.evidence import Evidence
from optkit.show.report import figures
from optkit.show.report.titles import device, spelled

_TO_DO = "Not measured: serve a part of the load on these devices before you rely on it."
_UNSURE = "Measure before you decide: with slower passes the limits take more devices."


def chosen(rows: Sequence[ServingRow]) -> list[ServingRow]:
    """The row of the fewest devices and the one of the lowest cost, once if they are the same."""
    able = [row for row in rows if row.status == "ok"]
    priced = [row for row in able if row.usd_per_hour is not None]
    ends = [min(priced, key=lambda row: (row.usd_per_hour, row.devices))] if priced else []
    ends += [min(able, key=lambda row: (row.devices, row.usd_per_hour or 0.0))] if able else []
    return [row for place, row in enumerate(ends) if row not in ends[:place]]


def of_serving(rows: Sequence[ServingRow], limits: ServingLimits) -> Recommendation:
    """The cheapest and the fewest devices that hold the limits."""
    found, within = chosen(rows), limits_in_words(limits)
    if not found:
        return Recommendation(
            ship="none",
            sentence=f"No devices hold the load{within}: the rows say why.",
            evidence=(Evidence.PREDICTED,),
            conditions=(),
        )
    names = ["Cheapest", "Fewest devices"] if len(found) == 2 else ["Cheapest and fewest devices"]
    if found[0].usd_per_hour is None:
        names = ["Fewest devices"]
    parts = [
        f"{name}{within if place == 0 else ''}: {_told(row)}."
        for place, (name, row) in enumerate(zip(names, found, strict=True))
    ]
    sure = all(_is_certain(row) for row in found)
    return Recommendation(
        ship="unknown",
        likely=sure or None,
        sentence=" ".join([*parts, _TO_DO if sure else _UNSURE]),
        evidence=(Evidence.PREDICTED,),
        conditions=tuple(dict.fromkeys(why for row in found for why in _doubts(row))),
    )


def limits_in_words(limits: ServingLimits) -> str:
    """` within 500 ms to the first token and 50 ms per token (p95)`; empty without limits."""
    parts = []
    if limits.ttft_ms is not None:
        parts.append(f"{figures.ms(limits.ttft_ms)} to the first token")
    if limits.tpot_ms is not None:
        parts.append(f"{figures.ms(limits.tpot_ms)} per token")
    return f" within {' and '.join(parts)} (p{limits.percentile:g})" if parts else ""


def devices_in_words(row: ServingRow) -> str:
    """`4 × FP8 on NVIDIA L4, 2 copies of 2 devices`."""
    size = (row.tensor or 1) * (row.pipeline or 1)
    text = f"{row.devices} × {device(row.target)} in {spelled(row.precision)}"
    if row.readers:
        text += f", {row.readers} to read and {row.copies} to write"
        return f"{text}, each of {size}" if size > 1 else text
    plural = "y" if row.copies == 1 else "ies"
    return f"{text}, {row.copies} cop{plural} of {size}" if size > 1 else text


def _told(row: ServingRow) -> str:
    text = devices_in_words(row)
    if row.devices_band is not None:
        low, high = row.devices_band
        most = "with no upper end" if high is None else f"to {high}"
        text += f" ({low} {most}, predicted)"
    if row.usd_per_hour is None:
        return f"{text}, price unknown"
    return (
        f"{text}, {figures.dollars(row.usd_per_hour)} per hour, "
        f"{figures.dollars(row.usd_per_million)} per million tokens"
    )


def _is_certain(row: ServingRow) -> bool:
    return row.devices_band is not None and row.devices_band[1] == row.devices


def _doubts(row: ServingRow) -> Iterator[str]:
    name = f"{device(row.target)} in {spelled(row.precision)}"
    if row.devices_band is not None and not _is_certain(row):
        high = row.devices_band[1]
        more = "no number of devices would do" if high is None else f"it takes {high} devices"
        yield f"{name}: at the slow end of the prediction, {more}"
    if row.price is not None and not row.price.verified:
        yield f"{name}: its price is unverified"
