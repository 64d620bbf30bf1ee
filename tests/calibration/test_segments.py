"""Samples that pass a graph segment by segment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.calibration.fills import NO_FILLS
from optkit.craft.calibration.part import SamplePart, data
from optkit.craft.calibration.segments import ErrorSums, Segments, feed_size
from optkit.facts.errors import StorageError
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.data.spool import Spool
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.statistics import Moments
from tests.networks import network

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,T,8] x, int64[N,T] attention_mask, float[8,24] w_a, float[24,5] w_b)
      => (float[N,T,8] left, float[N,T,5] right) {
      a = MatMul (x, w_a)
      t = Tanh (a)
      right = MatMul (t, w_b)
      left = Relu (x)
      errors = Concat <axis=-1> (left, right)
    }"""
MOST = 1 << 30


def feeds() -> list[Feed]:
    """40 samples of 6 tokens, of which the last two may be padding."""
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 6, 8)).astype(np.float32)
    mask = np.ones((40, 6), np.int64)
    mask[::3, 4:] = 0
    return [{"x": x[i : i + 8], "attention_mask": mask[i : i + 8]} for i in range(0, 40, 8)]


def spool(folder: Path, given: list[Feed]) -> Spool:
    spool_writer.write(
        given, folder, list(graph.inputs(network(TEXT))), limit_samples=None,
        memory_bytes=1 << 28, progress=lambda what, share: None,
    )  # fmt: skip
    return Spool(folder)


def passed(
    tmp_path: Path, samples: Spool, free: int, size: int | None = 8
) -> tuple[Moments, np.ndarray]:
    """Through three segments: up to `a`, up to `t` with another value beside it, and behind it."""
    folder = tmp_path / "waiting"
    folder.mkdir(exist_ok=True)
    segments = Segments(samples, size, lambda: free, folder)
    model = network(TEXT)
    reads: list[str] = []
    for left in (["a"], ["t", "left"], []):
        part = graph.between(model, reads, ["errors", *(n for n in left if n not in reads)])
        graph.save(part, tmp_path / "part.onnx")
        with simulator().session(tmp_path / "part.onnx", SessionOptions(1)) as session:
            found = segments.advance(session, left, "errors", 8)
        reads = left
    assert found is not None
    return found


@pytest.mark.parametrize("free", [MOST, 40_000])
def test_moments_are_those_of_the_real_rows(tmp_path: Path, free: int) -> None:
    model, given = network(TEXT), feeds()
    inputs, products = passed(tmp_path, spool(tmp_path / "samples", given), free)
    assert any((tmp_path / "waiting").iterdir()) == (free < MOST)
    graph.save(graph.expose(model, ["errors"]), tmp_path / "whole.onnx")
    with simulator().session(tmp_path / "whole.onnx", SessionOptions(1)) as session:
        rows = np.concatenate(
            [session.run(feed)["errors"][feed["attention_mask"] == 1] for feed in given]
        ).astype(np.float64)
    assert inputs.count == len(rows) == 40 * 6 - 14 * 2
    np.testing.assert_allclose(inputs.matrix(), rows[:, :8].T @ rows[:, :8] / len(rows), rtol=1e-5)
    expected = rows[:, :8].T @ rows[:, 8:] / len(rows)
    np.testing.assert_allclose(products, expected, rtol=1e-5, atol=1e-6)


def test_values_in_files_change_no_bit(tmp_path: Path) -> None:
    samples = spool(tmp_path / "samples", feeds())
    in_memory, on_disk = (passed(tmp_path, samples, free) for free in (MOST, 40_000))
    np.testing.assert_array_equal(in_memory[0].total, on_disk[0].total)
    np.testing.assert_array_equal(in_memory[1], on_disk[1])


def test_numbers_beyond_all_formats_are_left_out(tmp_path: Path) -> None:
    given = feeds()
    given[1]["x"][0, 0, 0] = 1e38
    inputs, products = passed(tmp_path, spool(tmp_path / "samples", given), MOST)
    assert np.isfinite(inputs.matrix()).all() and np.isfinite(products).all()
    assert inputs.count < 40 * 6 - 14 * 2 - 8


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    samples = spool(tmp_path / "samples", feeds())
    (tmp_path / "waiting").mkdir()
    for number in range(5):
        (tmp_path / "waiting" / f"{number}.npz").mkdir()  # no file can be written here
    with pytest.raises(StorageError):
        passed(tmp_path, samples, 40_000)


def test_samples_run_alone_if_a_value_has_no_batch_in_front(tmp_path: Path) -> None:
    samples = spool(tmp_path / "samples", feeds())
    turned = network(
        TEXT.replace("t = Tanh (a)", "b = Transpose <perm=[1, 0, 2]> (a)\n t = Tanh (b)")
    )
    assert feed_size(network(TEXT), ["a", "t"], samples, 8) == 8
    assert feed_size(turned, ["a", "t"], samples, 8) == 1
    assert feed_size(turned, ["a", "t"], samples, None) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5))
def test_sums_do_not_depend_on_the_batches(sizes: list[int]) -> None:
    rows = np.random.default_rng(1).standard_normal((sum(sizes), 7)).astype(np.float32)
    together, apart = ErrorSums(4), ErrorSums(4)
    part = SamplePart(0, [b""])
    together.add(data(rows, part, NO_FILLS, -1))
    for piece in np.split(rows, np.cumsum(sizes)[:-1]):
        apart.add(data(piece, part, NO_FILLS, -1))
    (one, beside), (other, apart_beside) = (
        sums.result() or pytest.fail() for sums in (together, apart)
    )
    np.testing.assert_array_equal(one.total, other.total)
    np.testing.assert_array_equal(beside, apart_beside)
    assert one.count == other.count == len(rows)
