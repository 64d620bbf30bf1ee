"""The table of the outputs of a build, and of their parts, beside those of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optkit.facts.measurement import ChannelSpread, Fidelity, OutputFidelity
from optkit.show.report import figures
from optkit.show.report.layers import Cell, noise


@dataclass(frozen=True)
class OutputRow:
    """`sqnr`: dB; `channels`: the SQNR of its channels, each by itself; `told`: what is special."""

    name: str
    sqnr: Cell
    interval: str
    cosine: str
    largest: str
    channels: str
    told: str


HEAD = (
    "output",
    "SQNR, dB",
    "95 % interval",
    "cosine",
    "largest error",
    "channels alone: least, 5th percentile, median",
    "note",
)


def outputs(fidelity: Fidelity | None) -> list[OutputRow]:
    """A row for each output and part, the worst first; those without an SQNR last."""
    rows = fidelity.outputs if fidelity is not None else ()
    return [_output(row) for row in sorted(rows, key=_need)]


def _need(row: OutputFidelity) -> tuple[bool, float]:
    return row.sqnr_db is None, row.sqnr_db or 0.0


def _output(row: OutputFidelity) -> OutputRow:
    name = row.output if row.part is None else f"{row.output}, {row.part}"
    exact = row.equal is not None and row.sqnr_db is None
    return OutputRow(
        name,
        Cell(figures.NONE) if exact else noise(row.sqnr_db),
        figures.span(row.ci95, lambda end: f"{end:.1f}"),
        figures.NONE if row.cosine is None else f"{row.cosine:.6f}",
        figures.NONE if exact else figures.number(row.max_abs_error),
        _spread(row.channels),
        "; ".join(_told(row)),
    )


def _spread(channels: ChannelSpread | None) -> str:
    if channels is None:
        return ""
    ends = (channels.least, channels.p5, channels.median)
    return ", ".join("equal" if end is None else f"{end:.1f}" for end in ends)


def _told(row: OutputFidelity) -> Iterator[str]:
    if row.equal is not None:
        yield f"{figures.percent(row.equal)} of the values are equal"
    if row.silent:
        yield "zero in the reference: beside the signal of all outputs"
    if row.constant:
        yield "constant, though it varies in the reference"
