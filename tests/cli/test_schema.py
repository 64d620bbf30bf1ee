"""`optkit schema` prints the schemas of documents and of recipes."""

from __future__ import annotations

from pathlib import Path

from jsonschema import Draft7Validator, Draft202012Validator

from tests.conftest import Optkit


def test_every_schema_is_valid(optkit_here: Optkit, tmp_path: Path) -> None:
    names = optkit_here("schema", cwd=tmp_path).out.split()
    assert {"recipe", "result", "plan", "package"} <= set(names)
    for name in names:
        schema = optkit_here("schema", name, cwd=tmp_path).json
        draft = Draft7Validator if name == "recipe" else Draft202012Validator
        assert schema["$schema"] == draft.META_SCHEMA["$schema"]
        draft.check_schema(schema)


def test_an_unknown_name_is_refused_with_the_nearest(optkit_here: Optkit, tmp_path: Path) -> None:
    done = optkit_here("schema", "resul", cwd=tmp_path)
    assert done.code == 2
    done.told("unknown schema 'resul'", "did you mean result")
