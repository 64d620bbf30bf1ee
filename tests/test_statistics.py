"""Statistics: data-independent bins, exact merging, ranges against numpy, the file's honesty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optkit.calibration import Observer
from optkit.errors import InputRefused, IntegrityError
from optkit.statistics import (
    Statistics,
    ValueStatistics,
    count_bins,
    data_digest,
    edges,
    load,
    merge,
    save,
)

FLOATS = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


def observed(*batches: np.ndarray) -> ValueStatistics:
    observer = Observer()
    assert all(observer.update(batch) for batch in batches)
    return observer.result()


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


@given(FLOATS, st.lists(st.integers(0, 60), max_size=4), st.randoms())
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
    with pytest.raises(InputRefused, match="only one side holds 'x'"):
        merge(a, statistics(np.ones(3, np.float32), "y"))


@given(FLOATS, st.floats(50, 100))
def test_percentile_agrees_with_sorting_within_a_bin(x: np.ndarray, percentile: float) -> None:
    low, high = observed(x).range("percentile", percentile)
    cut = int(x.size * (100 - percentile) / 200)  # so many may fall off at each end
    lowest, highest = (float(v) for v in np.sort(x)[[cut, x.size - 1 - cut]])
    slack = np.abs([lowest, highest]) / 128 + np.finfo(np.float32).smallest_normal
    assert max(lowest - slack[0], x.min()) <= low <= lowest
    assert highest <= high <= min(highest + slack[1], x.max())


def test_percentile_cuts_outliers_that_minmax_keeps() -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    x[:3] = [1e4, -2e4, 3e4]
    value = observed(x)
    assert value.range("minmax", 99.9) == (-2e4, 3e4)
    assert value.range("percentile", 100) == (-2e4, 3e4)
    low, high = value.range("percentile", 99.9)
    assert (low, high) == pytest.approx(np.quantile(x, [0.0005, 0.9995]), rel=0.02)
    assert value.fraction_outside(-5e3, 5e3) == 3 / x.size
    assert value.fraction_outside(low, high) == pytest.approx(0.001, rel=0.2)


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
    assert found.range("a/ b", "minmax", 0) == (float(x.min()), float(x.max()))
    assert found.value("a/ b").count == 500
    again = f"""
import pathlib, optkit.statistics as s
s.save(s.load(pathlib.Path({str(tmp_path / "s")!r})), pathlib.Path({str(tmp_path / "t")!r}))
"""
    subprocess.run([sys.executable, "-c", again], check=True)
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
        (b"optkit.statistics/v1", b"optkit.statistics/v2"),
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


def test_warnings_tell_few_samples_and_constant_tensors() -> None:
    few = statistics(np.zeros(4, np.float32)).warnings()
    assert "4 calibration samples" in few[0] and "'x' is constant (0)" in few[1]
    assert statistics(np.arange(64, dtype=np.float32)).warnings() == []


def test_an_unknown_value_is_named() -> None:
    with pytest.raises(InputRefused, match="'y'"):
        statistics(np.ones(3, np.float32)).range("y", "minmax", 100)
