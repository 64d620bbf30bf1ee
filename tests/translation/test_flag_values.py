"""Values of other tools in optkit's units and names."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.satellites.translation import flag_values


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("pools", "workspace:4096", 4 * 2**30),
        ("pools", "workspace:0.25M", 2**18),
        ("pools", "workspace:2G", 2**31),
        ("pools", "workspace:1024b", 1024),
        ("mebibytes", "16", 2**24),
        ("gibibytes", "4", 2**32),
        ("gibibytes", "0.5", 2**29),
        ("seconds", "5", 5.0),
        ("milliseconds", "200", 0.2),
        ("integer", "-1", -1),
    ],
)
def test_units(kind: str, text: str, expected: object) -> None:
    assert flag_values.value(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [("pools", "4096"), ("pools", "workspace:"), ("pools", "workspace:4T"), ("seconds", "nan"),
     ("seconds", "inf"), ("milliseconds", "-1"), ("integer", "1.5"), ("boolean", "yes"),
     ("layers", "fp16"), ("layers", ":fp16"), ("gibibytes", "four")],
)  # fmt: skip
def test_a_malformed_value_is_an_error(kind: str, text: str) -> None:
    with pytest.raises(ValueError):
        flag_values.value(kind, text)


def test_what_optkit_cannot_follow_is_refused() -> None:
    for kind, text in (("pools", "dlaSRAM:1"), ("seconds", "-1"), ("patterns", "/layer[0-9]+")):
        with pytest.raises(flag_values.Refusal):
            flag_values.value(kind, text)


def test_shapes() -> None:
    assert flag_values.shapes("ids:1x128,'a:0':2x3,n:scalar,m:") == {"ids": (1, 128), "a:0": (2, 3)}
    for text in ("ids", "ids:1y2", "ids:0x2", ":1x2", "a:1,a:2"):
        with pytest.raises(ValueError):
            flag_values.shapes(text)
    with pytest.raises(flag_values.Refusal, match="names"):
        flag_values.shapes("*:1x3")


SHAPES = st.dictionaries(
    st.from_regex(r"[A-Za-z_][\w./]*(:\d)?", fullmatch=True),
    st.lists(st.integers(1, 9999), min_size=1, max_size=5).map(tuple),
    min_size=1,
)


@given(SHAPES)
def test_shapes_are_written_as_they_are_read(shapes: flag_values.Shapes) -> None:
    assert flag_values.shapes(flag_values.written(shapes)) == shapes


NAME = st.text("abz09_/.[]?-", min_size=1, max_size=8)


@given(NAME, NAME)
def test_a_layer_matches_its_own_name_and_no_other(layer: str, other: str) -> None:
    (pattern,) = flag_values.layers(f"{layer}:fp16")
    assert fnmatchcase(layer, pattern)
    assert fnmatchcase(other, pattern) == (layer == other)


def test_the_last_layer_that_matches_counts() -> None:
    assert list(flag_values.layers("a:int8,*:fp16,a:fp16").items()) == [
        ("*", "fp16"),
        ("a", "fp16"),
    ]


EXPRESSION = st.lists(
    st.sampled_from(["a", "b", "/", "_", "0", r"\.", ".", ".*"]), min_size=1, max_size=6
).map("".join)


@given(EXPRESSION, st.text("ab/_0.", max_size=8), st.booleans())
def test_a_regular_expression_matches_the_same_names(text: str, name: str, whole: bool) -> None:
    text += "$" if whole else ""
    (pattern,) = flag_values.patterns(text)
    assert fnmatchcase(name, pattern) == bool(re.match(text, name))
