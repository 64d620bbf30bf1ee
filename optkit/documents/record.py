"""The common parts of the models of all documents, and the types of their values.

A key that may be null has the default None, because a document of an older optkit lacks the keys
that were added later. Almost no other key has a default, so that none is forgotten.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    JsonValue,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

T = TypeVar("T")


class Record(BaseModel):
    """A part of a document: immutable, no conversion of types, no NaN. The schemas allow no other
    keys; keys that a newer optkit has added are nevertheless read, and written again."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        json_schema_extra={"additionalProperties": False},
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        json_schema_serialization_defaults_required=True,
        defer_build=True,  # most runs need only a few of the models
    )

    @classmethod
    def from_object(cls, source: object) -> Self:
        """The model of an object with attributes of the same names. Raises ValidationError."""
        return cls.model_validate(source, from_attributes=True, extra="ignore")

    @classmethod
    def from_optional(cls, source: object | None) -> Self | None:
        """As `from_object`; None for None."""
        return None if source is None else cls.from_object(source)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The model of the JSON that `to_json` wrote. Raises ValidationError."""
        # as JSON text, because only then are arrays read as tuples
        return cls.model_validate_json(json.dumps(data))

    def __getitem__(self, key: str) -> Any:
        """As in its JSON: what some functions returned before they returned documents."""
        return self.to_json()[key]

    def to_json(self) -> Object:
        """Every key, in the order of the fields; lists instead of tuples."""
        return self.model_dump(mode="json")


class ClosedSchema(GenerateJsonSchema):
    """Writes the schemas of dataclasses as those of a Record: all keys, and no others."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        return {**found, "required": list(found["properties"]), "additionalProperties": False}


def said(description: str) -> Any:
    """The description of a field in the JSON schema, if its name does not say enough."""
    return Field(description=description)


def _number(**limits: float) -> GetPydanticSchema:
    """An integer or a finite float, unchanged: 1 is not written as 1.0."""
    told = "".join(f", {_LIMITS[name]} {limit}" for name, limit in limits.items())
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
    return GetPydanticSchema(lambda source, handler: union)


_LIMITS = {"ge": "at least", "gt": "above", "le": "at most"}

Number = Annotated[int | float, _number(), WithJsonSchema({"type": "number"})]
NotNegative = Annotated[
    int | float, _number(ge=0), WithJsonSchema({"type": "number", "minimum": 0})
]  # fmt: skip
Positive = Annotated[
    int | float, _number(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]  # fmt: skip
Share = Annotated[
    int | float,
    _number(ge=0, le=1),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]

Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Interval = Annotated[tuple[Number, Number], said("[low, high]")]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Object = dict[str, JsonValue]  # with any keys
# an error message names the first wrong row, not a million
Rows = Annotated[tuple[T, ...], Field(fail_fast=True)]


def absent(value: object) -> bool:
    """For `Field(exclude_if=absent)`: the key is left out instead of being null."""
    return value is None
