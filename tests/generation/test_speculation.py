"""Texts with drafted tokens are those without, greedy and sampled, whatever drafts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.ground.decoder import CACHE_AXIS, Decoder
from optkit.ground.runtimes import Recurrent, SessionOptions, backend
from optkit.satellites.generation.acceptance import (
    Accept,
    DraftTokens,
    SampledAcceptance,
    accept_greedy,
)
from optkit.satellites.generation.decoding import DecodedTokens, Ending, decode
from optkit.satellites.generation.draft_length import DraftLength
from optkit.satellites.generation.drafters import Drafter, DraftModel, PromptLookup
from optkit.satellites.generation.sampling import Sampler, Sampling, probabilities
from optkit.satellites.generation.speculation import Speculator
from tests.generation.conftest import POSITIONS, VOCABULARY, Network, write

TOKEN = st.integers(0, VOCABULARY - 1)
PROMPT = st.lists(TOKEN, min_size=1, max_size=12)
FIXED = st.sampled_from([None, 1, 2, 5])
SAMPLING = st.builds(
    Sampling, st.sampled_from([0.3, 1.0]), st.sampled_from([None, 3]), st.just(0.9),
    st.integers(0, 99),
)  # fmt: skip
once = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def other(tmp_path: Path) -> Recurrent:
    """A network that often agrees with `network`."""
    exact, noise = Network.random(0), Network.random(1)
    near = Network(exact.embeddings, exact.positions, exact.head + 0.3 * noise.head)
    write(near, tmp_path / "draft.onnx")
    return backend("onnxruntime").session(tmp_path / "draft.onnx", SessionOptions(threads=1))


Drafts = Callable[[Sampling | None], Drafter]


@pytest.fixture(params=["lookup", "model", "short model"])
def drafts(request: pytest.FixtureRequest, other: Recurrent) -> Drafts:
    """The drafters; the last one takes no more than nine tokens."""
    if request.param == "lookup":
        return lambda sampling: PromptLookup()
    context = 9 if request.param == "short model" else None
    return lambda sampling: DraftModel(other, of(other), VOCABULARY, context, sampling)


def of(session: Recurrent) -> Decoder:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    return decoder


def written(
    session: Recurrent,
    drafter: Drafter,
    prompt: Sequence[int],
    accept: Accept,
    *,
    limit: int,
    ends: Sequence[int] = (),
    fixed: int | None = None,
) -> tuple[DecodedTokens, Speculator]:
    """Text 0; every kept token is told once, in its order."""
    told: list[int] = []
    writer = Speculator(session, of(session), drafter, DraftLength(fixed))
    ending = Ending(frozenset(ends), limit, pad=3)
    made = writer.write(prompt, 0, ending, accept, lambda row, token: told.append(token))
    assert [told] == made.tokens
    return made, writer


@once
@given(prompt=PROMPT, limit=st.integers(1, 20), fixed=FIXED)
def test_greedy_texts_are_those_of_plain_decoding(
    session: Recurrent, network: Network, drafts: Drafts, prompt: list[int], limit: int,
    fixed: int | None,
) -> None:  # fmt: skip
    made, writer = written(session, drafts(None), prompt, accept_greedy, limit=limit, fixed=fixed)
    assert made.tokens == [network.continued(prompt, limit)] and made.reasons == ["length"]
    counts = writer.counts
    assert made.decode.tokens == limit - 1 == counts.runs + counts.accepted
    assert counts.accepted <= counts.drafted and counts.plain.tokens <= counts.runs


@once
@given(prompt=PROMPT, ends=st.sets(TOKEN, min_size=1, max_size=3), fixed=FIXED)
def test_a_text_ends_before_the_first_token_that_ends_it(
    session: Recurrent, network: Network, drafts: Drafts, prompt: list[int], ends: set[int],
    fixed: int | None,
) -> None:  # fmt: skip
    free = network.continued(prompt, 20)
    stop = next((at for at, token in enumerate(free) if token in ends), None)
    made, _ = written(
        session, drafts(None), prompt, accept_greedy, limit=20, ends=list(ends), fixed=fixed
    )
    assert made.tokens == [free[:stop]]
    assert made.reasons == ["length" if stop is None else "stop"]


@once
@given(prompt=PROMPT, sampling=SAMPLING, fixed=FIXED)
def test_a_seed_gives_the_text_of_plain_sampling_with_prompt_lookup(
    session: Recurrent, prompt: list[int], sampling: Sampling, fixed: int | None
) -> None:
    ending = Ending(frozenset(), 16, pad=3)
    plain = decode(
        session, of(session), [prompt], ending, Sampler(sampling, 1), lambda row, t: None
    )
    accept = SampledAcceptance(sampling, 0)
    made, _ = written(session, PromptLookup(), prompt, accept, limit=16, fixed=fixed)
    assert made.tokens == plain.tokens


def test_a_draft_model_that_is_the_target_is_always_right(
    session: Recurrent, network: Network
) -> None:
    for sampling in (None, Sampling(seed=4)):
        same = DraftModel(session, of(session), VOCABULARY, None, sampling)
        accept = accept_greedy if sampling is None else SampledAcceptance(sampling, 0)
        _, writer = written(session, same, [1, 2], accept, limit=21, fixed=4)
        assert (writer.counts.drafted, writer.counts.accepted) == (16, 16)
        assert (writer.counts.runs, writer.counts.plain.tokens) == (4, 0)


def test_sampled_texts_with_a_draft_model_follow_the_target(
    session: Recurrent, network: Network, other: Recurrent
) -> None:
    """Three tokens of two choices each, of which a draft model proposes the last two."""
    sampling, prompt, texts = Sampling(top_k=2), [1, 7], 2000
    found: Counter[tuple[int, ...]] = Counter()
    writer = Speculator(
        session, of(session), DraftModel(other, of(other), VOCABULARY, None, sampling),
        DraftLength(2),
    )  # fmt: skip
    ending = Ending(frozenset(), 4, pad=0)
    for row in range(texts):
        accept = SampledAcceptance(sampling, row)
        made = writer.write(prompt, row, ending, accept, lambda row, token: None)
        found[tuple(made.tokens[0][:3])] += 1
    assert 0.2 < writer.counts.accepted / writer.counts.drafted < 0.95
    expected = {}
    for tokens in product(range(VOCABULARY), repeat=3):
        shares = [
            probabilities(network.logits([*prompt, *tokens[:at]])[None], sampling)[0, token]
            for at, token in enumerate(tokens)
        ]
        if all(shares):
            expected[tokens] = texts * np.prod(shares)
    assert found.keys() <= expected.keys() and len(expected) == 8
    # χ² with 7 degrees of freedom: above 24.3 once in a thousand
    assert sum((found[key] - e) ** 2 / e for key, e in expected.items()) < 24.3


EIGHTHS = st.lists(st.integers(0, 8), min_size=3, max_size=3).map(
    lambda cuts: np.diff([0, *sorted(cuts), 8]) / 8
)
GRID = [(at + 0.5) / 840 for at in range(840)]


@settings(max_examples=15, deadline=None)
@given(p=EIGHTHS, q=EIGHTHS)
def test_each_token_has_exactly_the_probability_of_the_target(p: np.ndarray, q: np.ndarray) -> None:
    """840 is a multiple of 1 to 8, so every threshold lies between two numbers of the grid: the
    share of the numbers that lead to a token is its probability."""
    found = np.zeros(4)
    for drafted in np.flatnonzero(q):
        kept, replaced = outcomes(p, q, int(drafted))
        assert np.mean(kept) == pytest.approx(min(1.0, p[drafted] / q[drafted]))
        found[drafted] += q[drafted] * np.mean(kept)
        found += q[drafted] * (1 - np.mean(kept)) * replaced
    np.testing.assert_allclose(found, p, atol=1e-12)


def outcomes(p: np.ndarray, q: np.ndarray, drafted: int) -> tuple[list[bool], np.ndarray]:
    """For each first random number, whether the drafted token is kept; and the distribution, over
    the second one, of what replaces it."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.stack([p, p]))
    accept = SampledAcceptance(Sampling(), 0)

    def first(*numbers: float) -> tuple[int, int]:
        accept._random = Given(numbers)  # type: ignore[assignment]
        tokens = accept(logits, DraftTokens([drafted], q[None]))
        return tokens[0], len(tokens)

    lengths = [first(number, 0.5)[1] for number in GRID]
    replaced = np.zeros(4)
    if 1 in lengths:
        rejected = GRID[lengths.index(1)]
        drawn = [first(rejected, number)[0] for number in GRID]
        replaced = np.bincount(drawn, minlength=4) / len(GRID)
    return [length == 2 for length in lengths], replaced


class Given:
    """A generator of these random numbers."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


def test_a_loop_goes_on_from_the_rows_to_which_it_is_cut(
    session: Recurrent, network: Network
) -> None:
    loop = session.loop(of(session).carried, of(session).empty(1))
    text: list[int] = []
    for kept, tokens in ((0, [4, 7, 1]), (2, [5, 9]), (3, [2]), (0, [8, 8])):
        loop.cut(kept, CACHE_AXIS)
        text = [*text[:kept], *tokens]
        feed = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, len(text)), np.int64),
            "position_ids": np.arange(kept, len(text))[None],
        }
        logits = loop.run(feed)["logits"][0]
        wanted = [network.logits(text[: kept + at + 1]) for at in range(len(tokens))]
        np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)


def test_a_prompt_longer_than_the_draft_model_takes_is_continued_without_it(
    session: Recurrent, network: Network, other: Recurrent
) -> None:
    prompt = [1, 2, 3] * 4
    drafter = DraftModel(other, of(other), VOCABULARY, 10, None)
    made, writer = written(session, drafter, prompt, accept_greedy, limit=8, fixed=3)
    assert made.tokens == [network.continued(prompt, 8)] and writer.counts.drafted == 0
    assert len(prompt) + 8 <= POSITIONS


@pytest.mark.parametrize("rows", [VOCABULARY - 4, VOCABULARY + 4])
def test_a_draft_model_may_have_another_number_of_logits(
    session: Recurrent, network: Network, tmp_path: Path, rows: int
) -> None:
    """Models of one family round the size of the vocabulary differently."""
    head = np.resize(network.head.T, (rows, network.head.shape[0])).T.copy()
    head[:, VOCABULARY:] = 100  # tokens that the target does not know are the most likely
    path = tmp_path / "other.onnx"
    write(Network(network.embeddings, network.positions, head), path)
    with backend("onnxruntime").session(path, SessionOptions(threads=1)) as draft:
        for sampling in (None, Sampling(seed=1)):
            drafter = DraftModel(draft, of(draft), VOCABULARY, None, sampling)
            accept = accept_greedy if sampling is None else SampledAcceptance(sampling, 0)
            made, _ = written(session, drafter, [1, 2], accept, limit=12, fixed=3)
            assert max(made.tokens[0]) < VOCABULARY
            if sampling is None:
                assert made.tokens == [network.continued([1, 2], 12)]
