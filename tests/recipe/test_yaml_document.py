"""The YAML reader: YAML 1.2, places of keys, and hostile text."""

from __future__ import annotations

import json
import re
import string
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optkit.facts.errors import RecipeError
from optkit.ground.recipe import yaml_document

PLACE = re.compile(r"r\.yaml(:[0-9]+:[0-9]+)?")


def parse(text: str | bytes) -> Any:
    content = text.encode() if isinstance(text, str) else text
    return yaml_document.parse(content, "r.yaml").data


def refused(text: str | bytes) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert PLACE.fullmatch(caught.value.where or "")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("012", 12), ("1:30", "1:30"), ("0x1F", 31), ("0o17", 15),
        ("1_000", "1_000"), ("2024-01-01", "2024-01-01"), ("~", None), ("", None), ("True", True),
        ("'1'", "1"), ("-1.5e3", -1500.0), (".5", 0.5), ("1%", "1%"), ("=", "="),
        ("|\n  12\n", "12\n"),
    ],
)  # fmt: skip
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    found = parse(f"a: {text}")["a"]
    assert found == value and type(found) is type(value)


def test_places_of_keys_and_items() -> None:
    marks = yaml_document.parse(b"a: 1\nb:\n  c: [x, y]\n", "r.yaml").marks
    assert marks[("a",)] == "r.yaml:1:1"
    assert marks[("b", "c")] == "r.yaml:3:3"
    assert marks[("b", "c", 1)] == "r.yaml:3:10"


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("a: 1\na: 2", "r.yaml:2:1", "twice"),
        ("a: &x 1\nb: *x", "r.yaml:1:4", "aliases"),
        ("a: [*x]", "r.yaml:1:5", "aliases"),
        ("&k a: 1", "r.yaml:1:1", "aliases"),
        ("a: !!python/object/apply:os.system [id]", "r.yaml:1:4", "tags"),
        ("a: !!python/name:os.system", "r.yaml:1:4", "tags"),
        ("!!python/object:x.Y {}", "r.yaml:1:1", "tags"),
        ("%YAML 1.1\n---\na: no", "r.yaml:2:1", "directives"),
        ("a: 1\n---\nb: 2", "r.yaml:2:1", "more than one"),
        ("1: 2", "r.yaml:1:1", "key must be a string"),
        ("? [a]\n: 1", "r.yaml:1:3", "key must be a string"),
        ("a: .nan", "r.yaml:1:4", "finite"),
        ("a: 1e999", "r.yaml:1:4", "finite"),
        ("a: " + "9" * 5000, "r.yaml:1:4", "5000 digits"),
        ("a:\n\tb: 1", "r.yaml:2:1", "cannot start any token"),
        ("a: [1,", "r.yaml:1:7", "expected"),
        ("[" * 20_000, "r.yaml:1:52", "deep"),
        (b"a: 1\nb: \xff", "r.yaml:2:1", "UTF-8"),
        (b"a: \x00", "r.yaml:1:1", "character"),
        (b"a: '" + b"x" * 2**20 + b"'", "r.yaml", "bytes"),
    ],
)
def test_refusals_name_the_place(text: str | bytes, where: str, says: str) -> None:
    error = refused(text)
    assert error.where == where
    assert says in error.message


def test_alias_bomb_is_refused_at_its_first_anchor() -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 11)]
    assert refused("\n".join(["l0: &l0 x", *levels])).where == "r.yaml:1:5"


def test_number_of_values_is_bounded() -> None:
    assert "values" in refused("a: [" + "1," * 60_000 + "]").message


def test_byte_order_mark_and_empty_text() -> None:
    assert parse(b"\xef\xbb\xbfa: 1") == {"a": 1}
    assert parse(b"# nothing\n") == {}


PLAIN = st.text(string.printable + "äß漢", max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | PLAIN
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(PLAIN, JSON, max_size=4), st.sampled_from([None, 2]))
def test_reads_json_as_json_does(data: dict[str, Any], indent: int | None) -> None:
    """JSON is YAML 1.2, so the standard library is an independent reference."""
    assert parse(json.dumps(data, indent=indent, ensure_ascii=False)) == data


ANY_TEXT = st.text("{}[]:,&*!%|>-?#'\" \n\tab01.", max_size=60).map(str.encode)


@given(st.binary(max_size=60) | ANY_TEXT)
@example(b"a: 'x\n...\n")
@example(b"- - -")
def test_any_bytes_give_data_or_an_error_with_a_place(content: bytes) -> None:
    try:
        yaml_document.parse(content, "r.yaml")
    except RecipeError as error:
        assert PLACE.fullmatch(error.where or "")
