"""Checks whether calibration data is what the model expects, without labels and before the data is
used.

    profile    figures of a set, input by input, streamed
    entrance   what the first weights behind an input expect
    alone      one set alone: duplicates, constants, outliers, noise
    beside     calibration data compared with evaluation data: scale, range, axes, content
    expected   data compared with the model: preprocessing, batch norm, first product, recipe
    token_ids  token ids and masks

A comment or docstring gives the reason for every limit; the clean sets in the tests keep a distance
from each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from optkit.craft.calibration.suspects import alone, beside, expected, token_ids
from optkit.craft.calibration.suspects.entrance import (
    ChannelMoments,
    Entrance,
    entrances,
    measure,
    tables,
    watched,
)
from optkit.craft.calibration.suspects.expected import PixelRange, of_preprocessor
from optkit.craft.calibration.suspects.profile import NumericInput, Profile, profile
from optkit.facts import codec
from optkit.facts.documents.data_finding import DataFinding

__all__ = [
    "ChannelMoments",
    "DataFinding",
    "Entrance",
    "ModelProperties",
    "PixelRange",
    "Profile",
    "entrances",
    "judge",
    "measure",
    "of_preprocessor",
    "profile",
    "tables",
    "to_json",
    "watched",
]


@dataclass(frozen=True)
class ModelProperties:
    """Known properties of the model. `ranges`: those that the recipe declares, by input."""

    entrances: Mapping[str, Entrance] = field(default_factory=dict)
    seen: Mapping[str, ChannelMoments] = field(default_factory=dict)
    preprocessing: PixelRange | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def judge(
    calibration: Profile, evaluation: Profile | None, model: ModelProperties
) -> list[DataFinding]:
    """Reasons to doubt the calibration data; empty if it is sound. Raises InputRefused for a token
    that the model does not have."""
    findings = list(alone.whole_set(calibration))
    for name, numbers in calibration.numbers.items():
        other = None if evaluation is None else evaluation.numbers.get(name)
        findings += _of_numbers(numbers, other, model)
    return [*findings, *token_ids.tokens_of(calibration, evaluation)]


def to_json(findings: list[DataFinding], calibration: Profile, compared: bool) -> dict[str, object]:
    """The data check as JSON for the result. `compared`: whether there was evaluation data."""
    return {
        "verdict": "suspect" if findings else "clean",
        "samples": calibration.samples,
        "compared": compared,
        "findings": [codec.to_json(finding) for finding in findings],
    }


def _of_numbers(
    x: NumericInput, other: NumericInput | None, model: ModelProperties
) -> Iterator[DataFinding]:
    broken = [*alone.constant(x), *alone.outlier(x)]
    yield from broken
    if broken:  # all other findings about the set follow from this one
        return
    yield from alone.alike(x)
    yield from alone.disordered(x)
    if other is not None:
        yield from beside.differences(x, other)
    span = model.ranges.get(x.info.name)
    if span is not None:
        yield from expected.declared(x, span)
        return
    if model.preprocessing is not None:
        yield from expected.preprocessed(x, model.preprocessing)
    entrance = model.entrances.get(x.info.name)
    if entrance is None:
        return
    norm = entrance.batchnorm
    if norm is not None and norm.value in model.seen:
        yield from expected.trained(x, norm, model.seen[norm.value])
    else:
        yield from expected.first_product(x, entrance, model.seen)
