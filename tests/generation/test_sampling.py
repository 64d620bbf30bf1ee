"""Drawing tokens: the distribution is that of transformers, the draws follow it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from optkit.facts.errors import UsageError
from optkit.satellites.generation.sampling import Sampler, Sampling, greedy, probabilities

# apart from each other: where two are equal, which of them is kept is nobody's promise
LOGITS = arrays.arrays(
    np.float32, (2, 9), elements=st.integers(-60, 60).map(lambda n: n / 8), unique=True
)


@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.sampled_from([None, 1, 3, 9, 20]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_what_is_drawn_from_is_what_transformers_draws_from(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float
) -> None:
    expected = TemperatureLogitsWarper(temperature)(None, torch.from_numpy(logits).double())
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = probabilities(logits, Sampling(temperature, top_k, top_p))
    np.testing.assert_allclose(found, expected.softmax(-1).numpy(), atol=1e-12)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    draw = Sampler(Sampling(seed=1), 1)
    counts = np.bincount([int(draw(logits)[0]) for _ in range(4000)], minlength=4)
    # χ² with 3 degrees of freedom: above 16.3 once in a thousand
    expected = 4000 * np.array([0.5, 0.3, 0.15, 0.05])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3


def test_a_row_draws_the_same_whatever_stands_beside_it() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 50))
    alone, together = Sampler(Sampling(seed=5), 1), Sampler(Sampling(seed=5), 3)
    for _ in range(20):
        assert alone(logits[:1])[0] == together(logits)[0]
    first, second = Sampler(Sampling(seed=5), 3)(logits), Sampler(Sampling(seed=6), 3)(logits)
    assert (first != second).any()


def test_the_top_token_alone_is_greedy() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(temperature=1e-310)):
        np.testing.assert_array_equal(Sampler(sampling, 4)(logits), greedy(logits))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Sampling(**wrong)  # type: ignore[arg-type]
