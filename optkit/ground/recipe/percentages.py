"""Numbers that a recipe may give as a percentage."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

_PERCENT = re.compile(r"([-+]?[0-9]+(\.[0-9]*)?|[-+]?\.[0-9]+) ?%")


def fraction(value: str | float) -> float:
    """ "1%" → 0.01. A bare number is the fraction itself, so 1 and more are refused as unclear."""
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value.strip())
        if not match:
            raise ValueError(f"{value!r} is neither a fraction (0.01) nor a percentage (1%)")
        return float(Decimal(match[1]) / 100)
    if abs(value) >= 1:
        raise ValueError(f"{value} would be {value * 100:g} %; write {value}% or {value / 100:g}")
    return value


def _fraction(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return fraction(value)
    return value


def percentage(value: float | None) -> float | str | None:
    """A fraction as in `fraction`, but 1.0 is allowed as "100%"."""
    clear = value is None or abs(value) < 1
    return value if clear else f"{Decimal(repr(value)) * 100}%"


def amount(value: object) -> object:
    """ "95%" → 0.95; a number of any size stays unchanged."""
    return fraction(value) if isinstance(value, str) else value


_Percentage = Annotated[str, WithJsonSchema({"type": "string", "pattern": _PERCENT.pattern})]
Amount = Annotated[
    float | None, BeforeValidator(amount, json_schema_input_type=float | _Percentage | None)
]
Fraction = Annotated[
    float | None,
    BeforeValidator(
        _fraction, json_schema_input_type=Annotated[float, Field(gt=-1, lt=1)] | _Percentage | None
    ),
    PlainSerializer(percentage, return_type=float | str | None, when_used="json"),
]
