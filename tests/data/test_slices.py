"""Slices of samples: named by the source, by a column, or their labels; and some samples alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import labelled, spool_writer
from optkit.ground.data.spool import Spool

X = (TensorInfo("x", "float32", ("batch", 2)),)


def written(batches: Any, path: Path, inputs: Any = X) -> Spool:
    spool_writer.write(batches, path, inputs, limit_samples=None, memory_bytes=1 << 20,
                progress=lambda *_: None, fill=True)  # fmt: skip
    return Spool(path)


def batches(*sizes: int, named: bool = True) -> Any:
    """Sample k holds k, its label is k % 3, its slice "even" or "odd"."""
    first = 0
    for size in sizes:
        k = np.arange(first, first + size)
        item = {"x": np.stack([k, k], 1).astype(np.float32)}, k % 3
        yield (*item, ["odd" if one % 2 else "even" for one in k]) if named else item
        first += size


def test_slices_are_kept_with_their_samples(tmp_path: Path) -> None:
    found = written(batches(4, 3), tmp_path / "named")
    names = ["even", "odd"] * 3 + ["even"]
    assert found.slices() == names
    found.to_file(tmp_path / "one.safetensors", {})
    assert Spool(tmp_path / "one.safetensors").slices() == names
    labels = written(batches(4, 3, named=False), tmp_path / "labels")
    assert labels.slices() == ["0", "1", "2", "0", "1", "2", "0"]
    assert labels.digest != found.digest
    rows = [({"x": np.zeros((2, 2), np.float32)}, np.zeros((2, 5)))]
    assert written(rows, tmp_path / "rows").slices() == []


def test_every_sample_of_a_source_has_a_slice_or_none(tmp_path: Path) -> None:
    feed, labels = {"x": np.zeros((2, 2), np.float32)}, np.zeros(2, np.int64)
    for number, items in enumerate((
        [(feed, labels, ["a"])],
        [(feed, labels), (feed, labels, ["a", "b"])],
        [(feed, labels, ["a", "b"]), (feed, labels)],
    )):  # fmt: skip
        with pytest.raises(InputRefused, match="slices for a batch of 2"):
            written(items, tmp_path / str(number))


@pytest.mark.parametrize("batch", ["batch", 4])
def test_some_samples_come_with_labels_and_slices(tmp_path: Path, batch: Any) -> None:
    inputs = (TensorInfo("x", "float32", (batch, 2)),)
    found = written(batches(4, 4, 3), tmp_path / "all", inputs)
    numbers = [9, 1, 2, 5, 10, 6]
    part = written(found.chosen(numbers), tmp_path / "part", inputs)
    pairs = [(feed["x"][: len(labels), 0], labels) for feed, labels in part]
    assert np.concatenate([x for x, _ in pairs]).tolist() == sorted(numbers)
    assert np.concatenate([one for _, one in pairs]).tolist() == [k % 3 for k in sorted(numbers)]
    assert part.slices() == ["odd" if k % 2 else "even" for k in sorted(numbers)]


def test_a_column_names_the_slices(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((3, 2), np.float32), label=[0, 1, 1], camera=[7, 7, 9])
    inputs = {"x": X[0]}
    found = written(labelled.samples(path, slice="camera", inputs=inputs), tmp_path / "spool")
    assert found.slices() == ["7", "7", "9"]
    with pytest.raises(InputRefused, match="camra"):
        list(labelled.samples(path, slice="camra", inputs=inputs))
