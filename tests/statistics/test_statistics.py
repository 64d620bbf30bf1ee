"""Statistics: data-independent bins, exact merging and sums, scaling, the file's honesty."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optkit.craft.calibration.fills import NO_FILLS
from optkit.craft.calibration.observer import Observer, RowSample
from optkit.craft.calibration.part import SamplePart, data
from optkit.facts.errors import InputRefused, IntegrityError, OptkitError
from optkit.ground.statistics import (
    MissingRange,
    Statistics,
    Tap,
    ValueStatistics,
    count_bins,
    data_digest,
    edges,
    load,
    merge,
    merged_taps,
    save,
)
from optkit.ground.statistics.sums import FINEST, add_symmetric, limbs, unpacked
from optkit.ground.statistics.values import Moments

FLOATS = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


EMPTY = ValueStatistics(np.inf, -np.inf, np.empty(0, np.uint16), np.empty(0, np.int64))


def part_of(x: np.ndarray) -> SamplePart:
    """Each row of axis 0 a sample."""
    return SamplePart(0, [hashlib.sha256(row.tobytes()).digest() for row in x])


def observed(*batches: np.ndarray, axis: int | None = None) -> ValueStatistics:
    observer = Observer(axis, rows=axis is not None)
    for batch in batches:
        part = part_of(batch)
        observer.update(data(batch, part, NO_FILLS, axis), part)
    return observer.result()


# what a range can be made of
BOUNDED = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-8e6, 8e6, width=32))


def statistics(x: np.ndarray, name: str = "x") -> Statistics:
    return Statistics({name: observed(x)}, len(x), data_digest([bytes([len(x) % 256]) * 32]))


def same(a: Statistics, b: Statistics, folder: Path) -> bool:
    save(a, folder / "a")
    save(b, folder / "b")
    return (folder / "a").read_bytes() == (folder / "b").read_bytes()


@given(FLOATS)
def test_every_element_lies_in_its_bin(x: np.ndarray) -> None:
    assert count_bins(x).sum() == x.size
    for value in x[:8]:  # each alone, so that a misplaced pair cannot cancel out
        bins = np.flatnonzero(count_bins(value[None]))
        lower, upper = edges(bins)
        assert bins.size == 1 and lower[0] <= value <= upper[0]


def test_bins_rise_with_the_value_and_are_one_128th_wide() -> None:
    lower, upper = edges(np.arange(0x80, 0xFF80))  # the finite ones: no exponent of all ones
    assert (lower[1:] >= upper[:-1]).all()
    normal = (np.abs(lower) >= np.finfo(np.float32).smallest_normal) & (lower > 0)
    assert ((upper - lower)[normal] <= lower[normal] / 128).all()


@given(BOUNDED, st.lists(st.integers(0, 60), max_size=4), st.randoms())
def test_merging_is_exact_in_any_order_and_grouping(
    tmp_path_factory: pytest.TempPathFactory, x: np.ndarray, cuts: list[int], random: object
) -> None:
    parts = [part for part in np.split(x, sorted(min(c, x.size) for c in cuts)) if part.size]
    shards = [
        Statistics({"x": observed(part)}, part.size, data_digest([part.tobytes()[:32]]))
        for part in parts
    ]
    whole = Statistics(
        {"x": observed(x)}, x.size, data_digest(bytes.fromhex(shard.data) for shard in shards)
    )
    random.shuffle(shards)  # type: ignore[attr-defined]
    while len(shards) > 1:
        shards.append(merge(shards.pop(0), shards.pop(0)))
    assert same(shards[0], whole, tmp_path_factory.mktemp("merge"))


def test_merge_joins_versions_and_refuses_different_graphs() -> None:
    a, b = statistics(np.ones(3, np.float32)), statistics(np.ones(4, np.float32))
    a = Statistics(a.values, a.samples, a.data, {"onnxruntime": "1.30"})
    b = Statistics(b.values, b.samples, b.data, {"onnxruntime": "1.31"})
    assert merge(a, b).versions == merge(b, a).versions == {"onnxruntime": "1.30, 1.31"}
    with pytest.raises(InputRefused, match="only one of the statistics has 'x'"):
        merge(a, statistics(np.ones(3, np.float32), "y"))


def test_the_share_that_a_range_cuts() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    x[:3] = [1e4, -2e4, 3e4]
    assert observed(x).fraction_outside(-5e3, 5e3) == 3 / x.size
    low, high = np.quantile(x, [0.0005, 0.9995]).tolist()
    assert observed(x).fraction_outside(low, high) == pytest.approx(0.001, rel=0.2)


def test_the_sign_of_zero_does_not_depend_on_the_order() -> None:
    zeros = [np.array([0.0], np.float32), np.array([-0.0], np.float32)]
    for batches in (zeros, zeros[::-1]):
        assert np.signbit([observed(*batches).low, observed(*batches).high]).tolist() == [False] * 2


def test_the_data_digest_names_a_multiset_of_samples() -> None:
    a, b = bytes([255]) * 32, bytes([1]) * 32
    assert data_digest([a, b]) == data_digest([b, a])
    assert data_digest([a, b]) != data_digest([a]) != data_digest([a, a])
    assert data_digest([bytes.fromhex(data_digest([a])), b]) == data_digest([a, b])


def test_a_file_holds_all_of_it_and_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    value = Statistics({"a/ b": observed(x)}, 5, data_digest([b"\1" * 32]), {"tool": "1", "b": "2"})
    save(value, tmp_path / "s")
    found = load(tmp_path / "s")
    assert (found.samples, found.data, found.versions) == (5, value.data, value.versions)
    again = found.value("a/ b")
    assert (again.low, again.high, again.count) == (float(x.min()), float(x.max()), 500)
    code = f"""
import pathlib, optkit.ground.statistics as s
s.save(s.load(pathlib.Path({str(tmp_path / "s")!r})), pathlib.Path({str(tmp_path / "t")!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()


@given(st.data())
def test_a_damaged_file_is_never_read_as_another(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damage") / "s"
    save(statistics(np.arange(9, dtype=np.float32)), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(IntegrityError, match="not a statistics file"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"optkit.statistics/v3", b"optkit.statistics/v4"),
        (b'\\"samples\\": 9', b'\\"samples\\": 0'),
        (b"counts/x", b"countz/x"),
        (np.array([0, 8], "<f4").tobytes(), np.array([8, 0], "<f4").tobytes()),  # low > high
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    save(statistics(np.arange(9, dtype=np.float32)), tmp_path / "s")
    content = (tmp_path / "s").read_bytes()
    assert old in content
    (tmp_path / "s").write_bytes(content.replace(old, new))
    with pytest.raises(IntegrityError):
        load(tmp_path / "s")


ROWS_3 = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 8), st.just(3)), elements=st.floats(-1e3, 1e3, width=32)
)


@given(st.lists(ROWS_3, min_size=1, max_size=5), st.randoms())
def test_numbers_per_channel_and_rows_merge_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[np.ndarray], random: object
) -> None:
    shards = [
        Statistics({"x": observed(b, axis=-1)}, len(b), data_digest([b.tobytes()[:32]]))
        for b in batches
    ]
    whole = Statistics(
        {"x": observed(*batches, axis=-1)},
        sum(map(len, batches)),
        data_digest(bytes.fromhex(shard.data) for shard in shards),
    )
    random.shuffle(shards)  # type: ignore[attr-defined]
    while len(shards) > 1:
        shards.append(merge(shards.pop(0), shards.pop(0)))
    assert same(shards[0], whole, tmp_path_factory.mktemp("merge"))


def test_the_sample_of_rows_is_the_one_with_the_least_hashes() -> None:
    random = np.random.default_rng(3)
    hashes = random.integers(0, 2**63, 3000, np.uint64)
    x = random.standard_normal((3000, 2)).astype(np.float32)
    sample = RowSample(2)
    for start in range(0, 3000, 170):
        part = x[start : start + 170]
        sample.update(hashes[start : start + 170], part.__getitem__)
    sample.update(hashes[:600], x.__getitem__)  # again: a hash counts once
    found, order = sample.result(), np.argsort(hashes)[:512]
    assert (found.hashes == hashes[order]).all() and (found.data == x[order]).all()


TERMS = st.lists(
    hnp.arrays(np.float32, (3, 3), elements=st.floats(-1e8, 1e8, width=32)), min_size=1, max_size=6
)


@given(TERMS, st.randoms())
def test_sums_do_not_depend_on_the_order_of_their_terms(
    terms: list[np.ndarray], random: object
) -> None:
    terms = [(t + t.T) / 2 for t in terms]
    found = []
    for _ in range(2):
        total, diagonal = np.zeros((3, 3)), np.zeros(3)
        for term in terms:
            add_symmetric(total, diagonal, term)
        found.append((total.tobytes(), diagonal.tobytes()))
        random.shuffle(terms)  # type: ignore[attr-defined]
    assert found[0] == found[1]
    exact = np.sum([t.astype(np.float64) for t in terms], axis=0)
    assert np.allclose(unpacked(total, diagonal), exact, rtol=1e-12, atol=1e-12)


def test_limbs_keep_what_a_float_holds() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * np.float32(1e-3)
    high, low = limbs(x)
    assert np.abs(high + low - x).max() <= 2.0**-47


def test_scaled_statistics_are_those_of_the_scaled_value(tmp_path: Path) -> None:
    x = np.random.default_rng(8).standard_normal((400, 3)).astype(np.float32)
    x *= np.array([100, 1, 0.01], np.float32)
    s = np.array([50, 0.5, 0.02])
    scaled, direct = observed(x, axis=-1).scaled(s), observed((x / s).astype(np.float32), axis=-1)
    assert (scaled.low, scaled.high, scaled.count) == (direct.low, direct.high, direct.count)
    assert (scaled.bins == direct.bins).all() and (scaled.counts == direct.counts).all()
    assert scaled.channels is not None and direct.channels is not None
    assert (scaled.channels.high == direct.channels.high).all()
    assert (scaled.channels.absmax == np.abs(x / s).max(axis=0).astype(np.float32)).all()
    assert np.allclose(scaled.channels.mean, direct.channels.mean, rtol=1e-4, atol=1e-6)
    save(Statistics({"x": scaled}, 400, data_digest([b"x"])), tmp_path / "s")
    assert load(tmp_path / "s").value("x").high == direct.high
    with pytest.raises(OptkitError, match="channels and rows"):
        observed(x).scaled(s)


def test_a_scaled_value_with_more_elements_than_its_rows_keeps_extremes_and_mass() -> None:
    x = np.random.default_rng(8).standard_normal((3000, 3)).astype(np.float32)
    x[7] = [40, 1, 1]  # an outlier that the sample of rows need not hold
    scaled = observed(x, axis=-1).scaled(np.array([2.0, 1, 1]))
    assert scaled.high == 20 and scaled.low == min(x[:, 0].min() / 2, x[:, 1:].min())
    assert scaled.count == pytest.approx(9000, rel=0.01)
    assert scaled.fraction_outside(-19, 19) == pytest.approx(1 / 9000, rel=0.1)


def test_merging_keeps_the_first_verdict_and_nothing_else() -> None:
    good = statistics(np.arange(4, dtype=np.float32)).value("x")
    bad = [replace(EMPTY, verdict=MissingRange(sample, "NaN")) for sample in (17, 3)]
    for order in ([good, *bad], [*bad, good], [bad[1], good, bad[0]]):
        merged = order[0].merged(order[1]).merged(order[2])
        assert merged.unbounded == "NaN in sample 3" and merged.count == 0
    assert good.merged(EMPTY) is EMPTY.merged(good) is good
    assert EMPTY.unbounded == "no elements"
    assert replace(EMPTY, excluded=5).unbounded == "nothing but fills of a mask"


def test_taps_of_one_value_are_joined() -> None:
    joined = merged_taps(
        [Tap("a"), Tap("b", 1), Tap("a", -1, rows=True), Tap("a", -1, moments=True)]
    )
    assert joined == [Tap("a", -1, rows=True, moments=True), Tap("b", 1)]
    axes = [Tap("a", 1, rows=True), Tap("a", -1, rows=True, moments=True), Tap("a", 1)]
    assert merged_taps(axes) == [Tap("a")]  # channels of two axes are told in no one array
    with pytest.raises(OptkitError, match="channel axis"):
        Tap("a", rows=True)


def test_warnings_tell_few_samples_and_constant_tensors() -> None:
    few = statistics(np.zeros(4, np.float32)).warnings()
    assert "4 calibration samples" in few[0] and "'x' is constant (0)" in few[1]
    tiny = np.linspace(0, 1e-39, 64, dtype=np.float32)
    assert "only denormal numbers" in statistics(tiny).warnings()[0]
    assert (
        "reaches 1e+06: FP16 carries"
        in statistics(np.linspace(0, 1e6, 64, dtype=np.float32)).warnings()[0]
    )
    assert statistics(np.arange(64, dtype=np.float32)).warnings() == []


def test_an_unknown_value_is_named() -> None:
    with pytest.raises(InputRefused, match="'y'"):
        statistics(np.ones(3, np.float32)).value("y")


def test_moments_of_inputs_below_the_grid_of_the_sums_are_zero() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, 24)).astype(np.float32)
    pattern = rng.uniform(3e-8, 6e-8, 20)  # products are rounded to a step of the grid or to zero
    rows[:, 4:] = rng.standard_normal((64, 1)) * pattern
    total, diagonal = np.zeros((24, 24)), np.zeros(24)
    for part in np.split(rows, 8):
        add_symmetric(total, diagonal, part.T @ part)
    raw = unpacked(total, diagonal)
    assert np.linalg.eigvalsh(raw[4:, 4:]).min() < -FINEST
    matrix = Moments(total, diagonal, 64).matrix()
    assert not matrix[4:].any() and not matrix[:, 4:].any()
    np.testing.assert_array_equal(matrix[:4, :4], raw[:4, :4] / 64)
