"""Dataclasses that are parts of documents as they are. pydantic checks them as strictly as the
models in `documents`; a worker writes no documents, and does not import pydantic.

The text below a field describes it in the JSON schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any


class PlainRecord:
    """The base of such a dataclass."""

    __pydantic_config__ = {  # noqa: RUF012  pydantic reads a plain dict
        "strict": True,
        "allow_inf_nan": False,
        "revalidate_instances": "always",  # nothing checked them when they were made
    }


def absent(value: object) -> bool:
    """Whether a key is left out of a document instead of being null."""
    return value is None


# metadata of a field:
SELDOM = MappingProxyType({"exclude_if": absent})  # documents leave it out while it is null
BESIDE = MappingProxyType({"exclude": True})  # the store has it, and documents do not


class _Checked:
    """How pydantic checks a value, and describes it in the JSON schema."""

    def __init__(self, core: Mapping[str, object], described: Mapping[str, object] | None = None):
        self._core, self._described = core, described

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        return dict(self._core)

    def __get_pydantic_json_schema__(self, core: object, handler: Callable[..., Any]) -> Any:
        return handler(core) if self._described is None else dict(self._described)


def _number(**limits: float) -> _Checked:
    """An integer or a finite float, unchanged: 1 is not written as 1.0."""
    told = "".join(f", {_LIMITS[name][1]} {limit}" for name, limit in limits.items())
    union = {
        "type": "union",
        "mode": "left_to_right",
        "choices": [
            {"type": "int", "strict": True, **limits},
            {"type": "float", "strict": True, "allow_inf_nan": False, **limits},
        ],
        "custom_error_type": "number",
        "custom_error_message": f"Input should be a number{told}",
    }
    described = {_LIMITS[name][0]: limit for name, limit in limits.items()}
    return _Checked(union, {"type": "number", **described})


_LIMITS = {
    "ge": ("minimum", "at least"),
    "gt": ("exclusiveMinimum", "above"),
    "le": ("maximum", "at most"),
}

# how numbers of both kinds are checked
NUMBER, NOT_NEGATIVE, POSITIVE, SHARE = (
    _number(),
    _number(ge=0),
    _number(gt=0),
    _number(ge=0, le=1),
)

Number = Annotated[float, NUMBER]
NotNegative = Annotated[float, NOT_NEGATIVE]
Positive = Annotated[float, POSITIVE]
Share = Annotated[float, SHARE]
Count = Annotated[int, _Checked({"type": "int", "strict": True, "ge": 0})]
AtLeastOne = Annotated[int, _Checked({"type": "int", "strict": True, "ge": 1})]
UNCHECKED = _Checked({"type": "any"})
