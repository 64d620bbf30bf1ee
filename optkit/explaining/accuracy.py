"""Rules that say why accuracy fell, from the layers' fidelity.

The cost of a fault is what the outputs gain where the layers that read the value are FP32 again, in
dB of SQNR; in points, the share of the drop that equals their share of the noise:

    share = 1 - 10^(-dB / 10)        points = drop · share
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from optkit.explaining.finding import Change, Cost, Finding
from optkit.explaining.speed import LEAST, left_behind, to_float
from optkit.explaining.subject import Subject
from optkit.explaining.words import modules, named
from optkit.report import figures
from optkit.runtime import Evidence

LEAST_DB = 0.5
"""What restoring a layer has to win: an eighth of the noise. Less is in the spread over samples."""

_BEYOND = 0.5  # of a pair's noise: see `clipped`
_FINE_DB = 35.0  # of a pair: eight bits of a Gaussian, whatever is clipped
_ONE_BIT_DB = 6.02
_POOR_DB = 20.0  # at the outputs: a tenth of the signal's amplitude

_JUDGING = ("max_drop", "min_sqnr", "min_value", "max_value", "max_slice_drop", "min_slice_value",
            "max_slice_value")  # fmt: skip

Row = Mapping[str, Any]


def clipped(subject: Subject) -> Iterator[Finding]:
    """An activation's range that is too small: most of the pair's noise is what lies beyond it.

    At the range of least squared error clipping makes less noise than rounding (Banner, Nahshan,
    Soudry: Post training 4-bit quantization, NeurIPS 2019, section 3, for Gaussian and Laplacian
    values); where it makes more, a larger range is better.
    """
    fidelity = subject.report.get("layer_fidelity") or {"values": []}
    for value in fidelity["values"]:
        if value["noise"] < _BEYOND or value["sqnr_db"] is None or value["sqnr_db"] > _FINE_DB:
            continue
        rows = [row for row in subject.likeness.values() if value["value"] in row["reads"]]
        nodes = tuple(value["readers"])
        (low, high), (least, most) = (value["low"], value["high"]), value["seen"]
        found = _noisy(
            subject, "clipped", nodes, rows,
            what=f"{value['share']:.2%} of {value['value']} are clipped: it reaches from "
            f"{least:.3g} to {most:.3g}, its codes from {low:.3g} to {high:.3g}{_alone(rows)}",
            why=f"{value['noise']:.0%} of the noise of this pair ({value['sqnr_db']:.1f} dB) is "
            "clipping, not rounding",
            change=_wider(subject, value["value"]),
        )  # fmt: skip
        if found is not None:
            yield found


def weight_axis(subject: Subject) -> Iterator[Finding]:
    """A weight whose scales do not follow its output channels.

    A scale per output channel is multiplied once, behind the sum; one along the summed axis cannot
    leave it, so no integer kernel takes it. One for the whole tensor follows its largest channel:
    found where the weight's noise is a bit (6.02 dB) above what scales per channel would leave.
    """
    for node, row in subject.likeness.items():
        own = (row["weights"] or {"sqnr_db": None})["sqnr_db"]
        best = row["by_channel_db"]
        worse = own is not None and best is not None and own < best - _ONE_BIT_DB
        if row["scales"] != "summed" and not worse:
            continue
        placed = subject.recipe["quantization"]["placement"]["tensor_ops"] or ()
        settings: dict[tuple[str, ...], Any] = to_float(subject, [node])
        text = f"leave it in {subject.baseline} until it is quantized along its output channels"
        if row["scales"] == "tensor" and row["op"] in placed:
            text = "let its weight have one scale per output channel"
            settings = {
                ("quantization", "placement", "tensor_ops"): [o for o in placed if o != row["op"]]
            }
        told = {"summed": "one scale per input, along the axis that is summed",
                "tensor": "one scale for all channels"}  # fmt: skip
        noise = (
            ""
            if own is None or best is None
            else (f", which leaves it {own:.1f} dB; per output channel it would have {best:.1f} dB")
        )
        found = _noisy(
            subject, "weight_axis", (node,), [row],
            what=f"the weight of {named([node])} has "
            f"{told.get(row['scales'], 'scales that do not fit it')}{noise}",
            why="no integer kernel multiplies by scales inside the sum"
            if row["scales"] == "summed" else "the largest channel sets the step of all others",
            change=Change(text, settings), least=0.0,
            ms=0.0 if subject.has_landed(node) else left_behind(subject, node),
        )  # fmt: skip
        if found is not None:
            yield found


def sensitive(subject: Subject) -> Iterator[Finding]:
    """Layers with most of the noise, where accuracy is not what was asked for: a gate on it is
    beyond its limit, or nothing judges and the outputs' SQNR is under 20 dB."""
    fidelity = subject.report.get("layer_fidelity")
    score = subject.result["accuracy"]
    if fidelity is None or fidelity["sqnr_db"] is None:
        return
    poor = score is None and fidelity["sqnr_db"] < _POOR_DB
    if not poor and not any(map(_is_broken, subject.report["gates"])):
        return
    groups: dict[Any, list[Row]] = {}
    for row in subject.likeness.values():
        if row["restored"] is not None:
            groups.setdefault(tuple(row["reads"]) or row["node"], []).append(row)
    for rows in groups.values():
        nodes = tuple(row["node"] for row in rows)
        found = _noisy(
            subject, "sensitive", nodes, rows,
            what=f"much of the noise at the outputs comes from {named(nodes)}{_alone(rows)}",
            why="in FP32 again, with nothing else changed, the outputs come that much closer",
            change=Change(f"leave it in {subject.baseline}", to_float(subject, nodes)),
        )  # fmt: skip
        if found is not None:
            yield found


def _is_broken(gate: Row) -> bool:
    """Whether a gate on accuracy is beyond its limit, certainly or by its estimate."""
    if gate["outcome"] == "fail":
        return gate["gate"] in _JUDGING
    beyond = gate["value"] is not None and gate["value"] > gate["limit"]
    return gate["gate"] == "max_drop" and beyond


def _noisy(
    subject: Subject, rule: str, nodes: tuple[str, ...], rows: Sequence[Row], *, what: str,
    why: str, change: Change, ms: float = 0.0, least: float = LEAST_DB,
) -> Finding | None:  # fmt: skip
    """The finding with its cost; None where restoring the layers wins too little."""
    cost = _cost(subject, rows)
    if subject.share(ms) >= LEAST:
        cost = replace(cost, ms=ms, evidence=Evidence.PREDICTED)
        if subject.share(ms) > cost.share:
            cost = replace(cost, share=subject.share(ms), of="layers")
    if cost.db is not None and cost.db < least and cost.ms is None:
        return None
    return Finding(rule, "accuracy", what, why, nodes, modules(nodes), cost, change)


def _alone(rows: Sequence[Row]) -> str:
    """What one layer alone does to the value it leaves."""
    known = rows[0]["isolated"] if len(rows) == 1 else None
    return "" if known is None else f"; this layer alone leaves {figures.likeness(known)}"


def _cost(subject: Subject, rows: Sequence[Row]) -> Cost:
    whole = (subject.report.get("layer_fidelity") or {"sqnr_db": None})["sqnr_db"]
    restored = next((row["restored"] for row in rows if row["restored"] is not None), None)
    if restored is None or whole is None:
        return Cost(0.0, "noise", Evidence.SIMULATED)
    if restored["sqnr_db"] is None:  # nothing else is noisy
        share, db = 1.0, None
    else:
        db = max(restored["sqnr_db"] - whole, 0.0)
        share = 1 - 10 ** (-db / 10)
    drop = subject.result["drop"]
    lost = drop["value"] * share if drop is not None and drop["value"] > 0 else None
    known = Evidence.SIMULATED if lost is None else Evidence.PREDICTED  # that points follow noise
    return Cost(share, "noise", known, db=db, points=lost)


def _wider(subject: Subject, value: str) -> Change:
    calibration = subject.recipe["calibration"]
    rows = subject.report["quantization"]
    methods = {row["method"] for row in rows if row["activation"] == value}
    if calibration is None:
        return Change("calibrate on more samples, like those that it will meet")
    if calibration["method"] != "minmax" and methods != {"minmax"}:
        key = ("calibration", "method")
        return Change("a range that holds all that calibration saw", {key: "minmax"})
    key = ("calibration", "samples")
    return Change(
        "calibrate on more samples, like those that it will meet", {key: 4 * calibration["samples"]}
    )
