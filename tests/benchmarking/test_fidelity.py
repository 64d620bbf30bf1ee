from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, t

from optkit.craft.benchmarking import partial_results as resuming
from optkit.craft.benchmarking.fidelity import fidelity
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.codec import to_json
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed


def feeds(samples: int = 48, batch: int = 7) -> list[Feed]:
    data = np.random.default_rng(0).normal(size=(samples, 5)).astype(np.float32)
    return [{"x": data[start : start + batch]} for start in range(0, samples, batch)]


def compare(session: Any, reference: Any, candidate: Any, data: list[Feed] | None = None) -> Any:
    batches = [(feed, None) for feed in (feeds() if data is None else data)]
    return fidelity(
        session(reference), session(candidate), batches, name="fp32", evidence=Evidence.SIMULATED
    )


def two_outputs(feed: Feed) -> Feed:
    return {"a": feed["x"], "b": feed["x"].sum(1)}


def test_streaming_sums_equal_the_formula_over_everything(session: Any) -> None:
    rng = np.random.default_rng(1)
    noises = {len(f["x"]): rng.normal(0, 1e-3, size=f["x"].shape) for f in feeds()}

    def noisy(feed: Feed) -> Feed:
        return {"a": feed["x"] + noises[len(feed["x"])], "b": feed["x"].sum(1) * 1.001}

    found = compare(session, two_outputs, noisy)
    r = np.concatenate([v.ravel() for f in feeds() for v in two_outputs(f).values()]).astype(float)
    c = np.concatenate([v.ravel() for f in feeds() for v in noisy(f).values()]).astype(float)
    assert found.sqnr_db == pytest.approx(10 * np.log10((r**2).sum() / ((r - c) ** 2).sum()))
    assert found.cosine == pytest.approx(r @ c / np.linalg.norm(r) / np.linalg.norm(c), abs=1e-12)
    assert found.max_abs_error == pytest.approx(np.abs(r - c).max())
    assert (found.samples, found.reference, found.evidence) == (48, "fp32", Evidence.SIMULATED)


@pytest.mark.parametrize("batch", [1, 7])
def test_the_share_of_the_power_that_differs_between_samples(batch: int, session: Any) -> None:
    boxes = np.random.default_rng(2).uniform(10, 20, (1, 40, 50)).astype(np.float32)

    def found(scale: float) -> float | None:
        def outputs(feed: Feed) -> Feed:
            return {"a": boxes + scale * feed["x"].repeat(10, 1)[:, None], "b": feed["x"] * scale}

        share: float | None = compare(session, outputs, outputs, feeds(batch=batch)).varying
        return share

    def expected(scale: float) -> float:
        whole = np.concatenate([
            np.concatenate([(boxes + scale * x[None].repeat(10, 1)).ravel(), x * scale])[None]
            for x in np.concatenate([feed["x"] for feed in feeds()])
        ])  # fmt: skip
        return float(whole.var(0).sum() / np.square(whole).mean(0).sum())

    for scale in (1e-3, 1.0, 30.0):  # a factor of 2 is 4 standard deviations of 32 buckets
        assert expected(scale) / 2 < (found(scale) or 0) < expected(scale) * 2
    assert found(0.0) == 0.0


def test_one_sample_and_outputs_of_a_whole_batch_say_nothing_of_others(session: Any) -> None:
    assert compare(session, two_outputs, two_outputs, feeds(samples=1)).varying is None
    summed = lambda feed: {"a": feed["x"].sum(0)}  # noqa: E731
    assert compare(session, summed, summed, feeds(samples=14)).varying is None


def test_a_comparison_goes_on_where_it_ended(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit the same, also for outputs that have no row per sample."""
    monkeypatch.setattr(resuming, "_SECONDS", 0.0)
    monkeypatch.setattr(resuming, "_SHARE", 0)

    def summed(feed: Feed) -> Feed:
        return {"a": feed["x"], "b": feed["x"].sum(0)}

    for number, outputs in enumerate((two_outputs, summed)):
        folder = tmp_path / str(number)

        def part(start: int, kept: PartialScores | None, outputs: Any = outputs) -> Any:
            def rounded(feed: Feed) -> Feed:
                return {name: values.round(2) for name, values in outputs(feed).items()}

            return fidelity(
                session(outputs), session(rounded), [(one, None) for one in feeds()[start:]],
                name="fp32", evidence=Evidence.SIMULATED, kept=kept,
            )  # fmt: skip

        whole = part(0, PartialScores(folder))
        kept = PartialScores(folder)
        assert len(kept.scores) == len(feeds()) and whole.samples == 48
        kept.scores = kept.scores[:3]
        assert part(3, kept) == part(0, None) == whole


def test_what_fills_up_a_fixed_batch_does_not_count(session: Any) -> None:
    """A feed of 7 whose labels are 3: the others are its samples again."""
    (feed,) = feeds(7)

    def noisy(given: Feed) -> Feed:
        return {"a": given["x"] + (np.arange(7) > 2)[:, None], "b": given["x"].sum(1)}

    found = fidelity(
        session(two_outputs), session(noisy), [(feed, np.zeros(3))], name="fp32",
        evidence=Evidence.SIMULATED,
    )  # fmt: skip
    assert (found.samples, found.sqnr_db, found.max_abs_error) == (3, None, 0.0)


@pytest.mark.slow
@given(st.floats(1e-6, 0.5), st.integers(1, 48))
def test_a_relative_error_has_the_known_sqnr_whatever_the_batches(
    session: Any, error: float, batch: int
) -> None:
    double = [{"x": f["x"].astype(np.float64)} for f in feeds(batch=batch)]
    found = compare(session, lambda f: f, lambda f: {"x": f["x"] * (1 + error)}, double)
    assert found.sqnr_db == pytest.approx(-20 * np.log10(error), abs=1e-4)
    assert found.cosine == pytest.approx(1.0)


def test_the_interval_holds_what_few_samples_do_to_the_noise(session: Any) -> None:
    """Two of 48 samples hold nearly all of it: without them the SQNR would be 40 dB higher."""

    def noisy(feed: Feed) -> Feed:
        loud = np.isin(feed["x"][:, 0], worst)
        return {"x": feed["x"] + np.where(loud[:, None], 0.1, 1e-4).astype(np.float32)}

    data = np.concatenate([feed["x"] for feed in feeds()])
    worst = data[[3, 30], 0]
    found = [compare(session, lambda f: f, noisy, feeds(batch=b)) for b in (1, 7)]
    low, high = found[0].ci95
    assert low < found[0].sqnr_db < high and high - low > 3
    assert found[1].ci95 == pytest.approx(found[0].ci95)
    # BCa ends of blocks of five, all resamples at once, from another generator
    noise = np.square(noisy({"x": data})["x"] - data, dtype=np.float64).sum(axis=1)
    signal = np.square(data, dtype=np.float64).sum(axis=1)
    starts = np.random.default_rng(7).integers(0, 48, (20_000, 10, 1))
    drawn = ((starts + np.arange(5)) % 48).reshape(20_000, 50)[:, :48]
    draws = 10 * np.log10(signal[drawn].sum(1) / noise[drawn].sum(1))
    bias = norm.ppf((draws < found[0].sqnr_db).mean())
    z = bias - t.ppf(0.975, 8.6) * np.sqrt(9.6 / 8.6)
    end = norm.cdf(bias + z / (1 - bias * z))
    assert np.quantile(draws, end) == pytest.approx(low, abs=0.3)


def test_few_samples_have_no_interval(session: Any) -> None:
    few = compare(session, lambda f: f, lambda f: {"x": f["x"] * 1.01}, feeds(samples=19))
    assert few.ci95 is None and few.sqnr_db == pytest.approx(40, abs=0.1)


def test_bit_equal_outputs_have_no_finite_sqnr(session: Any) -> None:
    found = compare(session, two_outputs, two_outputs)
    assert (found.sqnr_db, found.cosine, found.max_abs_error) == (None, 1.0, 0.0)
    json.dumps(to_json(found), allow_nan=False)


def test_a_dead_candidate_has_cosine_zero(session: Any) -> None:
    found = compare(session, lambda f: f, lambda f: {"x": np.zeros_like(f["x"])})
    assert found.sqnr_db == pytest.approx(0.0)
    assert found.cosine == 0.0


def test_infinities_both_agree_on_are_left_out(session: Any) -> None:
    masked = [{"x": np.array([[1.0, -np.inf, 2.0]])}]
    found = compare(session, lambda f: f, lambda f: {"x": f["x"] * 1.1}, masked)
    assert found.sqnr_db == pytest.approx(20.0)


def test_a_cache_of_codes_is_not_compared_with_floats(session: Any) -> None:
    def decoder(error: float, dtype: type, width: int) -> Any:
        def run(feed: Feed) -> Feed:
            logits = feed["x"].astype(np.float64) * (1 + error)
            return {"logits": logits, "present": np.full((len(logits), width), 100, dtype)}

        return run

    for dtype, width in ((np.int8, 8), (np.uint8, 4)):
        found = compare(session, decoder(0.0, np.float32, 8), decoder(0.1, dtype, width))
        assert found.sqnr_db == pytest.approx(20.0)


def test_class_indices_do_not_drown_the_logits(session: Any) -> None:
    def with_index(error: float) -> Any:
        def run(feed: Feed) -> Feed:
            logits = feed["x"].astype(np.float64) * (1 + error)
            return {"class": np.full(len(logits), 7 if error else 3), "logits": logits}

        return run

    found = compare(session, with_index(0.0), with_index(0.1))
    assert found.sqnr_db == pytest.approx(20.0)
    only = compare(session, lambda f: {"c": np.array([3])}, lambda f: {"c": np.array([4])})
    assert only.max_abs_error == 1.0


def test_samples_are_counted_behind_a_scalar_input(session: Any) -> None:
    data = [{"t": np.float32(2), "x": np.ones((5, 2), np.float32)}] * 2
    found = compare(session, lambda f: f, lambda f: f, data)  # type: ignore[arg-type]
    assert found.samples == 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_lost_and_counted(session: Any, bad: float) -> None:
    def broken(feed: Feed) -> Feed:
        values = feed["x"].copy()
        if len(values) == 6:  # the last batch
            values[2, 1] = bad
        return {"x": values}

    def zeroed(feed: Feed) -> Feed:
        return {"x": np.where(np.isfinite(values := broken(feed)["x"]), values, 0)}

    found = compare(session, lambda f: f, broken)
    assert found.not_finite == 1
    assert replace(found, not_finite=None) == compare(session, lambda f: f, zeroed)
    with pytest.raises(InputRefused, match="every sample") as caught:
        compare(session, lambda f: f, lambda f: {"x": f["x"] * np.float32(bad)})
    assert caught.value.where == "outputs 'x'"
    assert "if the graph has FP16" in str(caught.value.hint)
    with pytest.raises(InputRefused, match="the reference") as caught:
        compare(session, broken, lambda f: f)
    assert caught.value.where == "output 'x', samples from 42"
    assert "FP16" not in str(caught.value.hint)


def test_outputs_that_do_not_match_are_refused(session: Any) -> None:
    with pytest.raises(InputRefused, match="gives nothing"):
        compare(session, two_outputs, lambda f: {"a": f["x"]})
    with pytest.raises(InputRefused, match=r"expected shape \[7, 5\]"):
        compare(session, lambda f: f, lambda f: {"x": f["x"].T})


def test_outputs_that_are_all_zero_are_not_called_equal(session: Any) -> None:
    nothing = compare(session, lambda f: {"x": f["x"] * 0}, lambda f: {"x": f["x"] * 0})
    assert nothing.all_zero and nothing.sqnr_db is None
    assert not compare(session, lambda f: f, lambda f: f).all_zero


def test_nothing_to_compare_is_refused(session: Any) -> None:
    with pytest.raises(InputRefused, match="no samples"):
        compare(session, lambda f: f, lambda f: f, [])
    with pytest.raises(InputRefused, match="all its outputs are zero"):
        compare(session, lambda f: {"x": f["x"] * 0}, lambda f: f)
