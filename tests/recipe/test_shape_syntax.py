"""trtexec's shape syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.errors import UsageError
from optkit.ground.recipe import parse_shapes


def test_reads_several_inputs() -> None:
    assert parse_shapes("ids:1x128,mask:1x128") == {"ids": (1, 128), "mask": (1, 128)}
    assert parse_shapes("input:0:8x3x224x224") == {"input:0": (8, 3, 224, 224)}
    assert parse_shapes("n:7") == {"n": (7,)}


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1x2", "x:1xx2", "x:1x-2", "x:1,", "x:axb", "x:1X2"]
)
def test_bad_syntax_says_the_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes(text, where="--min-shapes")
    assert caught.value.where == "--min-shapes"
    assert "image:8x3x224x224" in (caught.value.hint or "")


@pytest.mark.parametrize(("text", "says"), [("x:1x0", "size of 0"), ("x:1,x:2", "twice")])
def test_senseless_shapes(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_shapes(text)


NAMES = st.text("abc_:./-0", min_size=1, max_size=8)
SHAPES = st.lists(st.integers(1, 10**6), min_size=1, max_size=6).map(tuple)


@given(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=4))
def test_round_trip(shapes: dict[str, tuple[int, ...]]) -> None:
    text = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    assert parse_shapes(text) == shapes
