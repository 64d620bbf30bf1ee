"""The model of a plan and its costs, without the predicted figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.api.plan_subject import _tokens


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((None, None, None), (1024, 256)),
        ((None, None, 448), (359, 89)),
        ((None, 60, 64), (4, 60)),
        ((60, None, 64), (60, 4)),
        ((5000, None, None), (5000, 256)),
    ],
)
def test_tokens_that_nobody_asks_for(
    asked: tuple[int | None, int | None, int | None], expected: tuple[int, int]
) -> None:
    assert _tokens(*asked) == expected


@given(st.integers(2, 10_000))
def test_defaults_fit_into_the_positions(positions: int) -> None:
    prompt, new = _tokens(None, None, positions)
    assert prompt >= 1 and new >= 1 and prompt + new <= positions
