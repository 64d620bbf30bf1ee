"""The loop against the network computed by hand: padding, endings, what is told and timed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Recurrent
from optkit.satellites.generation.decoding import DecodedTokens, Ending, decode
from optkit.satellites.generation.sampling import greedy
from tests.generation.conftest import VOCABULARY, Network

TOKEN = st.integers(0, VOCABULARY - 1)
PROMPTS = st.lists(st.lists(TOKEN, min_size=1, max_size=6), min_size=1, max_size=4)


def run(session: Recurrent, prompts: list[list[int]], limit: int, ends: set[int]) -> DecodedTokens:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    ending = Ending(frozenset(ends), limit, pad=3)
    return decode(session, decoder, prompts, ending, greedy, lambda row, token: None)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=PROMPTS, limit=st.integers(1, 8))
def test_each_row_of_a_padded_batch_is_what_it_is_alone(
    session: Recurrent, network: Network, prompts: list[list[int]], limit: int
) -> None:
    made = run(session, prompts, limit, set())
    assert made.tokens == [network.continued(prompt, limit) for prompt in prompts]
    assert made.reasons == ["length"] * len(prompts)
    assert made.prefill.tokens == sum(map(len, prompts))
    assert made.decode.tokens == len(prompts) * (limit - 1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=PROMPTS, ends=st.sets(TOKEN, min_size=1, max_size=3))
def test_a_row_ends_before_the_first_token_that_ends_it(
    session: Recurrent, network: Network, prompts: list[list[int]], ends: set[int]
) -> None:
    made = run(session, prompts, 8, ends)
    for prompt, tokens, reason in zip(prompts, made.tokens, made.reasons, strict=True):
        free = network.continued(prompt, 8)
        stop = next((at for at, token in enumerate(free) if token in ends), None)
        assert tokens == free[:stop]
        assert reason == ("length" if stop is None else "stop")


def test_every_kept_token_is_reported_once_in_its_order(
    session: Recurrent, network: Network
) -> None:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    told: dict[int, list[int]] = {0: [], 1: []}
    made = decode(
        session, decoder, [[1, 2], [5]], Ending(frozenset(), 5, 0), greedy,
        lambda row, token: told[row].append(token),
    )  # fmt: skip
    assert [told[0], told[1]] == made.tokens


def test_a_loop_hands_out_what_is_not_carried_and_equals_single_runs(session: Recurrent) -> None:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    past = {i.name: np.zeros((1, 1, 0, 8), np.float32) for i in decoder.cache}
    loop, held = session.loop(decoder.carried, past), past
    for seen, token in enumerate((4, 7, 1), start=1):
        feed = {
            "input_ids": np.array([[token]]),
            "attention_mask": np.ones((1, seen), np.int64),
            "position_ids": np.array([[seen - 1]]),
        }
        found, whole = loop.run(feed), session.run({**feed, **held})
        assert found.keys() == {"logits"}
        np.testing.assert_array_equal(found["logits"], whole["logits"])
        held = {into: whole[out] for out, into in decoder.carried.items()}
        assert held["past_key_values.0.key"].shape == (1, 1, seen, 8)


def test_a_loop_refuses_a_start_or_a_feed_that_does_not_fit(session: Recurrent) -> None:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    past = {i.name: np.zeros((1, 1, 0, 8), np.float32) for i in decoder.cache}
    with pytest.raises(InputRefused, match=r"past_key_value.*does not have"):
        session.loop(decoder.carried, {"past_key_values.0.key": past["past_key_values.0.key"]})
    with pytest.raises(InputRefused, match="dtype float64, not float32"):
        session.loop(decoder.carried, {name: x.astype(np.float64) for name, x in past.items()})
    with pytest.raises(InputRefused, match=r"attention_mask.*does not have"):
        session.loop(decoder.carried, past).run({})


def test_other_models_are_no_decoders(session: Recurrent) -> None:
    inputs, outputs = session.inputs, session.outputs
    assert Decoder.of(inputs[:3], outputs) is None  # no cache
    assert Decoder.of(inputs, outputs[:1]) is None  # handed in, never handed out
    assert Decoder.of(inputs[1:], outputs) is None  # no tokens
    assert Decoder.of(inputs, outputs[1:]) is None  # no logits
    found = Decoder.of([*inputs[:2], *inputs[3:]], outputs)
    assert found is not None and not found.positions
    assert (found.layers, found.heads, found.head_size, found.vocabulary) == (1, 1, 8, 12)
