"""JSON schemas whose keys have descriptions: the texts below the fields, and for keys that mean the
same in many documents one text for all."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from optkit.facts.documents.common_texts import COMMON


class DescribedSchema(GenerateJsonSchema):
    """Writes schemas in which the text below a field is the description of its key."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = described(super().model_schema(schema), schema["cls"])
        generic = schema["cls"].__pydantic_generic_metadata__["origin"]
        if generic is not None and generic.__doc__:
            found.setdefault("description", inspect.cleandoc(generic.__doc__))
        return found

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return described(super().dataclass_schema(schema), schema["cls"])


class ClosedSchema(DescribedSchema):
    """Writes the schemas of documents: dataclasses as those of a Record, with all keys and no
    others; and a text for each key that means the same in many documents."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _with_common_texts(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        keys = found["properties"]
        fields = schema["schema"]["fields"]
        seldom = {one["name"] for one in fields if "serialization_exclude_if" in one}
        for name in seldom:
            keys[name] = _without_null(keys[name])
        required = [name for name in keys if name not in seldom]
        closed = {**found, "required": required, "additionalProperties": False}
        return _with_common_texts(closed)


def described(schema: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    """The schema of a class with the texts below its fields as descriptions."""
    keys = schema.get("properties", {})
    for name, text in texts(cls):
        if name in keys:
            keys[name]["description"] = text
    return schema


def texts(cls: type) -> Iterator[tuple[str, str]]:
    """The name of a field of a dataclass or model, and the text below it."""
    for one in filter(_has_fields, reversed(cls.__mro__)):
        yield from _texts_of(one.__module__).get(one.__name__, ())


@cache
def _texts_of(module: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Class of a module → its fields with a text below, and the text."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = (one for one in tree.body if isinstance(one, ast.ClassDef))
    return {one.name: tuple(_below_fields(one)) for one in classes}


def _below_fields(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(tree.body):
        match field, below:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text).replace("\n", " ")


def _has_fields(cls: type) -> bool:
    if issubclass(cls, BaseModel):  # classes that pydantic made of generic ones have no source
        return cls.__module__.startswith("optkit.") and "[" not in cls.__name__
    return is_dataclass(cls)


def _without_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    forms = [form for form in schema.pop("anyOf", ()) if form != {"type": "null"}]
    return {**schema, **(forms[0] if len(forms) == 1 else {"anyOf": forms} if forms else {})}


def _with_common_texts(schema: JsonSchemaValue) -> JsonSchemaValue:
    for name, key in schema.get("properties", {}).items():
        if name in COMMON and not _is_described(key):
            key["description"] = COMMON[name]
    return schema


def _is_described(key: dict[str, Any]) -> bool:
    """Whether a key has a text, or a part with a text of its own."""
    return "description" in key or "$ref" in str(key)
