from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.data import arrays, labelled
from optkit.data.reading import reader_of
from optkit.data.reads import record
from optkit.errors import InputRefused
from optkit.runtime import TensorInfo

INPUTS = {name: TensorInfo(name, "float32", ("batch", 3)) for name in ("x", "z")}
STORED = {
    "x": np.arange(33, dtype=np.float32).reshape(11, 3),
    "z": -np.arange(33, dtype=np.float32).reshape(11, 3),
    "label": np.arange(11),
}


def stored(path: Path) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **STORED)
    else:
        save_file(STORED, path)
    return path


@pytest.mark.parametrize("name", ["samples.npz", "samples.safetensors"])
def test_arrays_come_in_batches_by_input_name(tmp_path: Path, name: str) -> None:
    path = stored(tmp_path / name)
    with record() as reads:
        feeds = list(arrays.samples(path, INPUTS))
    assert str(path) in reads.files
    assert [len(feed["x"]) for feed in feeds] == [8, 3]
    for key in INPUTS:
        np.testing.assert_array_equal(np.concatenate([f[key] for f in feeds]), STORED[key])
    pairs = list(labelled.samples(path, inputs=INPUTS))
    assert all(set(feed) == set(INPUTS) for feed, _ in pairs)
    assert np.concatenate([labels for _, labels in pairs]).tolist() == list(range(11))


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    path = stored(tmp_path / "samples.npz")
    wanted = {"xx": INPUTS["x"]}
    with pytest.raises(InputRefused, match="no array 'xx'") as caught:
        list(arrays.samples(path, wanted))
    assert caught.value.where == str(path) and caught.value.hint == "did you mean 'x'?"
    with pytest.raises(InputRefused, match="no array 'class'"):
        list(labelled.samples(path, label="class", inputs=INPUTS))
    np.savez(path, x=STORED["x"], z=STORED["z"][:4])
    with pytest.raises(InputRefused, match="different numbers of samples: x 11, z 4"):
        list(arrays.samples(path, INPUTS))
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputRefused, match="not arrays that can be read"):
        list(arrays.samples(path))
    path.write_bytes(b"PK no archive")
    with pytest.raises(InputRefused, match=r"not arrays that can be read: no \.npz archive"):
        list(arrays.samples(path))
    with pytest.raises(InputRefused, match="no reader knows it"):
        list(labelled.samples(path.rename(tmp_path / "data.bin")))
    with pytest.raises(InputRefused, match="no such file or folder"):
        list(labelled.samples(tmp_path / "gone"))


def test_the_reader_is_told_by_the_path(tmp_path: Path) -> None:
    named = ["a.TXT", "a.jsonl", "a.parquet", "b.npz", "b.safetensors", "c.py", "digits"]
    assert [reader_of(name) for name in named] == ["text"] * 3 + ["arrays"] * 2 + [None] * 2
    assert reader_of(tmp_path) == "images"
