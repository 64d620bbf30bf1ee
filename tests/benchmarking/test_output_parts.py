"""The SQNR of each output and of the parts of one output, beside numpy over all values at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.benchmarking.fidelity import pool, run
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Fidelity
from optkit.facts.tensors import Feed, TensorInfo

SAMPLES, BATCH, ANCHORS = 24, 5, 30
Outputs = dict[str, np.ndarray]


def compared(
    session: Any, reference: Outputs, candidate: Outputs, free: Collection[int] = (),
    *, intervals: bool = True,
) -> Fidelity:  # fmt: skip
    """The fidelity of outputs that are given for all samples. `free`: axes without a fixed size."""

    def give(whole: Outputs) -> Any:
        made = session(lambda feed: {name: values[feed["x"]] for name, values in whole.items()})
        made.outputs = tuple(
            TensorInfo(name, values.dtype.name, tuple(
                f"axis {axis}" if axis in (0, *free) else size
                for axis, size in enumerate(values.shape)
            ))
            for name, values in whole.items()
        )  # fmt: skip
        return made

    index = np.arange(SAMPLES)
    feeds: list[tuple[Feed, None]] = [
        ({"x": index[at : at + BATCH]}, None) for at in range(0, SAMPLES, BATCH)
    ]
    kept = PartialScores(None)
    run(give(reference), give(candidate), feeds, kept)
    return pool(kept, name="fp32", evidence=Evidence.SIMULATED, intervals=intervals)


def sqnr(r: np.ndarray, c: np.ndarray) -> float:
    r, c = r.astype(np.float64), c.astype(np.float64)
    return float(10 * np.log10((r**2).sum() / ((r - c) ** 2).sum()))


def noisy(rng: np.random.Generator, values: np.ndarray, db: float) -> np.ndarray:
    """The values with white noise of this SQNR."""
    noise = rng.normal(size=values.shape)
    noise *= np.sqrt((values.astype(float) ** 2).sum() / (noise**2).sum()) * 10 ** (-db / 20)
    return (values + noise).astype(np.float32)


def pixels(rng: np.random.Generator, channels: int = 4) -> np.ndarray:
    return rng.uniform(20, 600, (SAMPLES, channels, ANCHORS)).astype(np.float32)


def shares(rng: np.random.Generator, channels: int) -> np.ndarray:
    """Probabilities, most of them near 0; of several classes, one never fires."""
    logits = rng.normal(-4, 2, (SAMPLES, channels, ANCHORS))
    if channels > 2:
        logits[:, -1] -= 9
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


def signed(rng: np.random.Generator, channels: int, scale: float = 1.0) -> np.ndarray:
    return rng.normal(0, scale, (SAMPLES, channels, ANCHORS)).astype(np.float32)


def parts(found: Fidelity) -> list[str]:
    return [row.part for row in found.outputs if row.part is not None]


@pytest.mark.parametrize("axis", [1, 2], ids=["channels first", "channels last"])
@pytest.mark.parametrize("classes", [1, 5, 80])
def test_scores_do_not_hide_behind_boxes(session: Any, classes: int, axis: int) -> None:
    rng = np.random.default_rng(classes)
    heads = pixels(rng), shares(rng, classes)
    r = np.concatenate(heads, axis=1).swapaxes(1, axis)
    c = np.concatenate([noisy(rng, heads[0], 45), noisy(rng, heads[1], 2.4)], axis=1)
    found = compared(session, {"pred": r}, {"pred": c.swapaxes(1, axis)})
    assert (found.sqnr_db or 0) > 44  # what was told before
    last = f"channels 4 to {3 + classes}" if classes > 1 else "channel 4"
    assert parts(found) == ["channels 0 to 3", last]
    assert (found.worst.output, found.worst.part) == ("pred", last)
    assert found.worst.sqnr_db == pytest.approx(2.4, abs=1e-3)
    assert found.worst.ci95 is not None
    assert found.worst.ci95.low < 2.4 < found.worst.ci95.high


RNG = np.random.default_rng(0)
POINTS = np.stack([pixels(RNG, 17), pixels(RNG, 17), shares(RNG, 17)], axis=2)
MIXED: dict[str, tuple[np.ndarray, list[Sequence[int]]]] = {
    "pose": (
        np.concatenate([pixels(RNG), shares(RNG, 1), POINTS.reshape(SAMPLES, 51, ANCHORS)], 1),
        [[*range(4), *(at for at in range(5, 56) if at % 3 != 1)], [4, *range(7, 56, 3)]],
    ),
    "pitch in Hz and a logit": (
        np.concatenate([pixels(RNG, 1), signed(RNG, 1, 3.0)], 1), [[0], [1]]
    ),
    "masks": (
        np.concatenate([pixels(RNG), shares(RNG, 3), signed(RNG, 32)], 1),
        [range(4), range(4, 7), range(7, 39)],
    ),
    "angle": (
        np.concatenate([pixels(RNG), shares(RNG, 2), signed(RNG, 1)], 1),
        [range(4), range(4, 6), [6]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_each_unit_has_its_own_figure(session: Any, name: str) -> None:
    r, units = MIXED[name]
    c = noisy(np.random.default_rng(1), r, 40)
    found = compared(session, {"y": r}, {"y": c})
    rows = [row for row in found.outputs if row.part is not None]
    assert [row.sqnr_db for row in rows] == [
        pytest.approx(sqnr(r[:, list(unit)], c[:, list(unit)])) for unit in units
    ]
    assert found.worst.sqnr_db == min(row.sqnr_db or 0.0 for row in rows)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("classes", [1, 80])
def test_boxes_that_are_shares_of_the_picture_do_not_hide_scores(
    session: Any, classes: int, axis: int
) -> None:
    """RT-DETR and TensorFlow's exports of YOLO."""
    rng = np.random.default_rng(classes)
    places = rng.uniform(0.02, 0.98, (SAMPLES, 4, ANCHORS)).astype(np.float32)
    known = places, shares(rng, classes)
    noise = noisy(rng, places, 40), noisy(rng, known[1], 1.5)
    r, c = (np.concatenate(side, axis=1).swapaxes(1, axis) for side in (known, noise))
    found = compared(session, {"y": r}, {"y": c})
    assert (found.sqnr_db or 0) > (12 if classes == 1 else 4)
    assert found.worst.sqnr_db == pytest.approx(1.5, abs=1e-3)


def test_features_of_one_unit_have_no_parts(session: Any) -> None:
    """Some channels of every feature map have hardly any energy. What reads all of them reads
    those with the others."""
    rng = np.random.default_rng(2)
    scale = np.exp(rng.normal(0, 0.6, (1, 64, 1)))
    scale[:, :3] = 1e-3
    scale[:, 5] = 30.0
    plain = (signed(rng, 64) * scale).astype(np.float32)
    classes = np.exp(signed(rng, 30, 3.0))
    classes[:, 7] *= 1e-6
    positive = plain.copy()
    positive[:, 10:13] = 0.2 + 0.02 * np.tanh(plain[:, 10:13])
    for values in (plain, np.maximum(plain, 0), positive, classes / classes.sum(1, keepdims=True)):
        c = noisy(rng, values, 30)
        found = compared(session, {"y": values}, {"y": c})
        assert parts(found) == []
        assert found.worst.sqnr_db == found.sqnr_db == pytest.approx(30, abs=1e-3)
        spread = found.outputs[0].channels
        assert spread is not None and spread.axis == 1
        assert (spread.least or 0) < (spread.p5 or 0) < (spread.median or 0)


def test_the_spread_is_that_of_the_channels_by_themselves(session: Any) -> None:
    rng = np.random.default_rng(3)
    r = signed(rng, 21) * np.linspace(1, 5, 21)[None, :, None]
    r[:, 20] = 0.0  # silent
    c = noisy(rng, r, 25)
    c[:, 3] = r[:, 3]  # equal
    spread = compared(session, {"y": r}, {"y": c}).outputs[0].channels
    each = sorted(sqnr(r[:, at], c[:, at]) for at in range(20) if at != 3)
    assert spread is not None and spread.count == 20
    assert (spread.least, spread.p5) == (pytest.approx(each[0]), pytest.approx(each[0]))
    assert spread.median == pytest.approx(each[9])


def test_an_axis_of_a_free_size_counts_no_channels(session: Any) -> None:
    rng = np.random.default_rng(4)
    r = np.concatenate([pixels(rng), shares(rng, 1)], axis=1)
    found = compared(session, {"y": r}, {"y": noisy(rng, r, 40)}, free=[1, 2])
    assert parts(found) == [] and found.outputs[0].channels is None


def test_a_dead_output_speaks_whatever_the_others(session: Any) -> None:
    rng = np.random.default_rng(5)
    r = {"pred": pixels(rng), "seg": signed(rng, 4, 0.1)}
    c = {"pred": noisy(rng, r["pred"], 50), "seg": np.zeros_like(r["seg"])}
    found = compared(session, r, c)
    assert found.sqnr_db == pytest.approx(50, abs=0.1)
    assert (found.worst.output, found.worst.sqnr_db) == ("seg", pytest.approx(0.0))
    assert found.worst.cosine == 0.0 and found.worst.constant
    assert found.max_abs_error == found.outputs[0].max_abs_error  # the largest is in the first
    assert [row.output for row in found.outputs] == ["pred", "seg"]


def test_a_part_that_became_constant_is_said_to_be(session: Any) -> None:
    """Its SQNR is 14 dB because its mean is large."""
    rng = np.random.default_rng(6)
    r = {"y": signed(rng, 4, 0.2) - 1.0}
    c = {"y": np.full_like(r["y"], -1.0)}
    row = compared(session, r, c).worst
    assert row.constant and row.sqnr_db == pytest.approx(14.2, abs=0.2)
    assert not compared(session, r, {"y": noisy(rng, r["y"], 14)}).worst.constant
    assert not compared(session, {"y": r["y"] * 0 + 1}, {"y": c["y"] * 0 + 1.1}).worst.constant
    half = {"y": 0.5 * (r["y"] - 1)}
    assert not compared(session, r, half).worst.constant
    hardly = {"y": 1 + 1e-2 * r["y"]}  # 54 dB
    assert not compared(session, hardly, {"y": c["y"] * 0 + 0.99}).worst.constant


def test_what_is_zero_or_no_float(session: Any) -> None:
    rng = np.random.default_rng(7)
    r = {"y": signed(rng, 3), "none": np.zeros((SAMPLES, 2)), "class": np.arange(SAMPLES) % 5,
         "mask": np.ones((SAMPLES, 3), bool), "text": np.array(["a"] * SAMPLES)}  # fmt: skip
    c = {**r, "y": noisy(rng, r["y"], 30), "none": r["none"] + 1e-3}
    c["class"] = np.where(np.arange(SAMPLES) < 6, 7, r["class"])
    found = compared(session, r, c)
    rows = {row.output: row for row in found.outputs}
    assert rows["none"].silent
    power = float((r["y"].astype(float) ** 2).sum())
    assert rows["none"].sqnr_db == pytest.approx(10 * np.log10(power / (SAMPLES * 2e-6)))
    assert rows["none"].max_abs_error == pytest.approx(1e-3)
    assert rows["class"].equal == pytest.approx(18 / 24) and rows["class"].sqnr_db is None
    assert rows["mask"].equal == rows["text"].equal == 1.0
    assert found.worst.output == "y"
    loud = compared(session, r, {**c, "none": r["none"] + 1e3})
    assert loud.worst.output == "none" and (loud.worst.sqnr_db or 0) < 0
    only = compared(session, {"class": r["class"]}, {"class": c["class"]})
    assert only.outputs[0].equal == pytest.approx(18 / 24)


def test_the_worst_outputs_have_intervals(session: Any) -> None:
    rng = np.random.default_rng(13)
    r = {f"y{at}": signed(rng, 2) for at in range(12)}
    c = {name: noisy(rng, values, 20 + at) for at, (name, values) in enumerate(r.items())}
    found = compared(session, r, c)
    assert [row.ci95 is not None for row in found.outputs] == [True] * 8 + [False] * 4
    assert found.worst.output == "y0"


def test_a_cache_of_a_decoder_is_not_the_worst_output(session: Any) -> None:
    rng = np.random.default_rng(14)
    logits = rng.normal(size=(SAMPLES, 5, 7)).astype(np.float32)
    present = rng.normal(size=(SAMPLES, 2, 5, 4)).astype(np.float32)

    def decoder(outputs: Outputs) -> Any:
        made = session(lambda feed: {name: values[feed["at"]] for name, values in outputs.items()})
        made.inputs = (
            TensorInfo("input_ids", "int64", ("batch", "sequence")),
            TensorInfo("attention_mask", "int64", ("batch", "past + sequence")),
            *(TensorInfo(f"past_key_values.0.{kind}", "float32", ("batch", 2, "past", 4))
              for kind in ("key", "value")),
        )  # fmt: skip
        made.outputs = (
            TensorInfo("logits", "float32", ("batch", "sequence", 7)),
            *(TensorInfo(f"present.0.{kind}", "float32", ("batch", 2, "past + sequence", 4))
              for kind in ("key", "value")),
        )  # fmt: skip
        return made

    r = {"logits": logits, "present.0.key": present, "present.0.value": present}
    c = {"logits": noisy(rng, logits, 30), **dict.fromkeys(list(r)[1:], noisy(rng, present, 5))}
    ids = np.ones((SAMPLES, 5), np.int64)
    past = np.zeros((SAMPLES, 2, 0, 4), np.float32)
    feed = {
        "input_ids": ids, "attention_mask": ids, "past_key_values.0.key": past,
        "past_key_values.0.value": past, "at": np.arange(SAMPLES),
    }  # fmt: skip
    kept = PartialScores(None)
    run(decoder(r), decoder(c), [(feed, None)], kept)
    found = pool(kept, name="fp32", evidence=Evidence.SIMULATED)
    assert [row.output for row in found.outputs] == ["logits"]
    assert found.worst.sqnr_db == pytest.approx(30, abs=1e-3)
    assert (found.sqnr_db or 0) < 10


def test_the_largest_error_of_a_part_may_be_in_any_of_its_channels(session: Any) -> None:
    rng = np.random.default_rng(9)
    r = np.concatenate([pixels(rng), shares(rng, 3)], axis=1)
    c = noisy(rng, r, 60)
    c[0, 1, 0] += 50
    row = next(row for row in compared(session, {"y": r}, {"y": c}).outputs if row.part)
    assert row.max_abs_error == pytest.approx(float(np.abs(r - c)[:, :4].max()))


def test_the_axis_whose_parts_differ_most_is_that_of_the_channels(session: Any) -> None:
    rng = np.random.default_rng(10)
    place = np.where(np.arange(ANCHORS) < 15, 1.0, 0.05)
    for axis in (1, 2):
        r = (signed(rng, 6) * place + 0.01) * np.array([1e4] * 3 + [1.0] * 3)[:, None]
        r = r.swapaxes(1, axis)
        spread = compared(session, {"y": r}, {"y": noisy(rng, r, 40)}).outputs[0].channels
        assert spread is not None and spread.axis == axis


def test_shares_without_boxes_have_no_parts(session: Any) -> None:
    dense = np.random.default_rng(11).uniform(0.02, 0.98, (SAMPLES, 8, ANCHORS))
    found = compared(session, {"y": dense}, {"y": dense + 0.01})
    assert parts(found) == []


def test_what_does_not_count_is_no_zero_of_a_share(session: Any) -> None:
    rng = np.random.default_rng(12)
    r = np.concatenate([shares(rng, 3), signed(rng, 32)], axis=1)
    c = noisy(rng, r, 40)
    r[:, :, :6] = c[:, :, :6] = np.nan
    assert parts(compared(session, {"y": r}, {"y": c})) == ["channels 0 to 2", "channels 3 to 34"]


def test_what_is_not_finite_on_both_sides_does_not_count(session: Any) -> None:
    rng = np.random.default_rng(8)
    r = {"y": signed(rng, 3)}
    c = {"y": noisy(rng, r["y"], 30)}
    expected = sqnr(r["y"][:, :, 2:], c["y"][:, :, 2:])
    for side in (r, c):
        side["y"][:, :, 0], side["y"][:, :, 1] = np.nan, -np.inf
    assert compared(session, r, c).worst.sqnr_db == pytest.approx(expected)


HEADS = st.lists(
    st.tuples(st.sampled_from(["pixels", "shares", "small"]), st.integers(1, 5), st.floats(0, 60)),
    min_size=1, max_size=3, unique_by=lambda head: head[0],
)  # fmt: skip


def heads(drawn: list[tuple[str, int, float]], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    make = {"pixels": pixels, "shares": shares, "small": lambda r, n: signed(r, n, 1e-3)}
    found = [(make[kind](rng, count), db) for kind, count, db in drawn]
    return [(r, noisy(rng, r, db)) for r, db in found]


@given(HEADS, st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_heads_are_judged_alike_in_one_output_and_in_several(
    session: Any, drawn: list[tuple[str, int, float]], seed: int
) -> None:
    """Also in any order of the outputs."""
    made = heads(drawn, seed)
    named = {f"head{at}": sides for at, sides in enumerate(made)}

    def judged(outputs: dict[str, tuple[np.ndarray, np.ndarray]]) -> float | None:
        r, c = ({name: sides[at] for name, sides in outputs.items()} for at in (0, 1))
        return compared(session, r, c, intervals=False).worst.sqnr_db

    apart = judged(named)
    assert apart == pytest.approx(min(db for _, _, db in drawn), abs=1e-3)
    assert judged(dict(reversed(named.items()))) == apart
    joined = {"y": tuple(np.concatenate(side, axis=1) for side in zip(*made, strict=True))}
    assert judged(joined) == pytest.approx(apart, abs=1e-6)  # type: ignore[arg-type]
