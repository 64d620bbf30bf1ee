"""The common parts of the models of all documents, and the types of their values.

A key that may be null has the default None, because a document of an older optkit lacks the keys
that were added later. Almost no other key has a default, so that none is forgotten.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from optkit.facts.plain_record import NOT_NEGATIVE, NUMBER, POSITIVE, SHARE

T = TypeVar("T")


class Record(BaseModel):
    """A part of a document: immutable, no conversion of types, no NaN. The schemas allow no other
    keys; keys that a newer optkit has added are nevertheless read, and written again (those of a
    PlainRecord only read)."""

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


def said(description: str) -> Any:
    """The description of a field in the JSON schema, if its name does not say enough."""
    return Field(description=description)


# those of models, which are read as they are written: 1 stays an integer
Number = Annotated[int | float, NUMBER]
NotNegative = Annotated[int | float, NOT_NEGATIVE]
Positive = Annotated[int | float, POSITIVE]
Share = Annotated[int | float, SHARE]
Interval = Annotated[tuple[Number, Number], said("[low, high]")]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Object = dict[str, JsonValue]  # with any keys
# an error message names the first wrong row, not a million
Rows = Annotated[tuple[T, ...], Field(fail_fast=True)]
