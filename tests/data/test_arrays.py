from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from safetensors.numpy import save_file

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import arrays, labelled
from optkit.ground.data.reading import reader_of
from tests.hostile import pickles

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
    feeds = list(arrays.samples(path, INPUTS))
    assert [len(feed["x"]) for feed in feeds] == [8, 3]
    for key in INPUTS:
        np.testing.assert_array_equal(np.concatenate([f[key] for f in feeds]), STORED[key])
    pairs = list(labelled.samples(path, inputs=INPUTS))
    assert all(set(feed) == set(INPUTS) for feed, _ in pairs)
    assert np.concatenate([labels for _, labels in pairs]).tolist() == list(range(11))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_rows_with_all_axes_and_a_value_for_every_sample(tmp_path: Path, suffix: str) -> None:
    """A voice detector, built for one sample at a time: its state has the batch on axis 1, and its
    sampling rate has no axes, given once or for each sample."""
    inputs = {"x": TensorInfo("x", "float32", (1, 4)),
              "state": TensorInfo("state", "float32", (2, 1, 3)),
              "rate": TensorInfo("rate", "int64", ())}  # fmt: skip
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    state = np.arange(30, dtype=np.float32).reshape(5, 2, 1, 3)
    for rate in (np.array(16_000), np.full(5, 16_000)):
        path, given = tmp_path / f"a{rate.ndim}{suffix}", {"x": x, "state": state, "rate": rate}
        np.savez(path, **given) if suffix == ".npz" else save_file(given, path)
        feeds = list(arrays.samples(path, inputs))
        assert len(feeds) == 5
        for at, feed in enumerate(feeds):
            assert list(feed) == list(inputs) and feed["rate"].shape == () and feed["rate"] == 16000
            np.testing.assert_array_equal(feed["x"], x[at : at + 1])
            np.testing.assert_array_equal(feed["state"], state[at])


def test_samples_without_a_batch_come_one_by_one(tmp_path: Path) -> None:
    """Recordings of four frames. Without a row for each of them, the message shows how to stack
    them."""
    inputs = {"x": TensorInfo("x", "float32", (4, 2)), "h": TensorInfo("h", "float32", (1, 1, 3))}
    x = np.arange(40, dtype=np.float32).reshape(5, 4, 2)
    h = np.arange(15, dtype=np.float32).reshape(5, 1, 1, 3)
    np.savez(tmp_path / "a.npz", x=x, h=h)
    assert arrays.shapes(tmp_path / "a.npz", inputs) == {"x": (5, 4, 2), "h": (5, 1, 1, 3)}
    feeds = list(arrays.samples(tmp_path / "a.npz", inputs))
    for at, feed in enumerate(feeds):
        np.testing.assert_array_equal(feed["x"], x[at])
        np.testing.assert_array_equal(feed["h"], h[at])
    assert len(feeds) == 5
    np.savez(tmp_path / "b.npz", x=x.reshape(20, 2), h=h[:, 0])
    with pytest.raises(InputRefused, match="numbers of samples: x 20, h 5") as caught:
        list(arrays.samples(tmp_path / "b.npz", inputs))
    assert "stack([sample[name] for sample in samples]) for name in ('x', 'h')" in str(
        caught.value.hint
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_order_and_any_dtype_of_an_npz(tmp_path: Path, save: Any) -> None:
    given = {
        "columns": np.asfortranarray(np.arange(44, dtype=np.int16).reshape(11, 4)),
        "big": np.arange(11, dtype=">f8"),
        "flags": np.arange(22).reshape(11, 2, 1) % 3 == 0,
        "none": np.zeros((11, 0), np.float32),
    }
    assert given["columns"].flags.f_contiguous and not given["columns"].flags.c_contiguous
    save(tmp_path / "a.npz", **given)
    feeds = list(arrays.samples(tmp_path / "a.npz"))
    for name, array in given.items():
        found = np.concatenate([feed[name] for feed in feeds])
        np.testing.assert_array_equal(found, array)
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("save", [np.asfortranarray, np.ascontiguousarray])
@pytest.mark.parametrize("dtype", ["float32", "float16", ">f8", "int64", "bool"])
def test_an_npy_is_for_the_one_input_of_the_model(tmp_path: Path, save: Any, dtype: str) -> None:
    given = save(np.arange(33).reshape(11, 3) % 7).astype(dtype, order="K")
    path = tmp_path / "a.npy"
    np.save(path, given)
    for inputs, name in (({"x.1": INPUTS["x"]}, "x.1"), (None, "input")):
        feeds = list(arrays.samples(path, inputs))
        assert [len(feed[name]) for feed in feeds] == [8, 3]
        found = np.concatenate([feed[name] for feed in feeds])
        np.testing.assert_array_equal(found, given)
        assert found.dtype.newbyteorder("=") == given.dtype.newbyteorder("=")
    assert arrays.shapes(path, ["x"]) == {"x": (11, 3)}
    arrays.check_names(path, ["x"], {})
    arrays.check_names(path, [], {})  # an .onnx whose inputs are not known yet


def test_an_npy_for_several_arrays_is_refused_and_the_hint_writes_an_npz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, STORED["x"])
    monkeypatch.chdir(tmp_path)
    for refused in (
        lambda: next(arrays.samples(path, INPUTS)),
        lambda: arrays.check_names(path, ["x", "z"], {}),
        lambda: arrays.declared(path, ["x", "z"]),
    ):
        with pytest.raises(InputRefused, match="one array, and 2 are needed: 'x', 'z'") as caught:
            refused()
        assert caught.value.where == str(path)
    code = str(caught.value.hint).partition("names: ")[2]
    exec(code.replace("'x': ...", "'x': x").replace("'z': ...", "'z': z"), {"numpy": np, **STORED})
    (feed, *_) = arrays.samples(tmp_path / "a.npz", INPUTS)
    np.testing.assert_array_equal(feed["z"], STORED["z"][:8])
    for inputs in (None, {"x": INPUTS["x"]}):
        name = "x" if inputs else "input"
        with pytest.raises(InputRefused, match=f"2 are needed: '{name}', 'label'"):
            next(labelled.samples(path, inputs=inputs))
    with pytest.raises(InputRefused, match="2 are needed: 'input', 'label'"):
        arrays.check_names(path, [], {"label": "label"})


def test_an_npy_of_python_objects_or_damaged_is_refused(tmp_path: Path) -> None:
    path, canary = tmp_path / "a.npy", tmp_path / "canary"
    np.save(path, np.array([[1], [1, 2]], dtype=object))
    with pytest.raises(InputRefused, match="its dtype is object") as caught:
        next(arrays.samples(path))
    assert caught.value.where == str(path) and "numpy.save('a-numbers.npy'" in caught.value.hint
    for name, hostile in pickles.write(tmp_path, canary).items():
        if name.endswith("_array"):
            for read in (arrays.declared, arrays.check_counts, lambda p: next(arrays.samples(p))):
                with pytest.raises(InputRefused, match="dtype is object"):
                    read(hostile)
    assert not canary.exists()
    np.save(path, STORED["x"])
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputRefused, match="ends before its last value"):
        list(arrays.samples(path))
    path.write_bytes(b"no array")
    with pytest.raises(InputRefused, match="not arrays that can be read"):
        arrays.check_counts(path)
    np.save(path, np.float32(3))
    assert list(arrays.samples(path)) == []


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    """Of 32 MiB, a batch is 32 KiB."""
    many = {"input": np.zeros((8192, 1024), np.float32)}
    if name == "a.npy":
        np.save(tmp_path / name, many["input"])
    elif name == "a.npz":
        np.savez(tmp_path / name, **many)
    else:
        save_file(many, tmp_path / name)
    tracemalloc.start()
    try:
        assert sum(len(feed["input"]) for feed in arrays.samples(tmp_path / name)) == 8192
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_that_is_damaged_further_on_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((999, 3), np.float32))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[9000] ^= 1  # in the last samples
    (tmp_path / "a.npz").write_bytes(content)
    feeds = arrays.samples(tmp_path / "a.npz")
    assert next(feeds)["x"].shape == (8, 3)
    with pytest.raises(InputRefused, match="CRC") as caught:
        list(feeds)
    assert caught.value.where == str(tmp_path / "a.npz")


def test_what_does_not_fit_is_reported(tmp_path: Path) -> None:
    path = stored(tmp_path / "samples.npz")
    wanted = {"xx": INPUTS["x"]}
    with pytest.raises(InputRefused, match="no array 'xx'") as caught:
        list(arrays.samples(path, wanted))
    assert caught.value.where == str(path) and "did you mean 'x'? If so" in str(caught.value.hint)
    with pytest.raises(InputRefused, match="no array 'class', which the task reads as label"):
        list(labelled.samples(path, label="class", inputs=INPUTS))
    np.savez(path, x=STORED["x"], z=STORED["z"][:4])
    with pytest.raises(InputRefused, match="different numbers of samples: x 11, z 4"):
        list(arrays.samples(path, INPUTS))
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputRefused, match="its dtype is object") as caught:
        list(arrays.samples(path))
    assert caught.value.where == f"{path}, array 'x'"
    path.write_bytes(b"PK no archive")
    with pytest.raises(InputRefused, match=r"not arrays that can be read: not an \.npz archive"):
        list(arrays.samples(path))
    with pytest.raises(InputRefused, match="no reader for this kind of file"):
        list(labelled.samples(path.rename(tmp_path / "data.bin")))
    with pytest.raises(InputRefused, match="no such file or folder"):
        list(labelled.samples(tmp_path / "gone"))


@pytest.mark.parametrize("name", ["samples.npz", "samples.safetensors"])
def test_the_lines_of_the_hint_rename_an_array(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputRefused, match="no array 'xx', which is an input") as caught:
        list(arrays.samples(path, {"xx": INPUTS["x"]}))
    before = path.read_bytes()
    told, _, lines = str(caught.value.hint).partition("in Python:\n")
    exec(lines, {})
    renamed = tmp_path / name.replace(".", "-renamed.")
    assert renamed.name in told and path.read_bytes() == before
    feed = next(arrays.samples(renamed, {"xx": INPUTS["x"]}))
    assert np.array_equal(feed["xx"], next(arrays.samples(path, {"x": INPUTS["x"]}))["x"])


def test_the_reader_is_reported_by_the_path(tmp_path: Path) -> None:
    named = ["a.TXT", "a.jsonl", "a.parquet", "b.npz", "b.NPY", "b.safetensors", "c.py", "digits"]
    assert [reader_of(name) for name in named] == ["text"] * 3 + ["arrays"] * 3 + [None] * 2
    assert reader_of(tmp_path) == "images"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_arrays_declare_the_inputs_that_they_are_for(suffix: str, tmp_path: Path) -> None:
    values = {
        "image": np.zeros((70, 3, 4)),
        "half": np.zeros((70, 2), np.float16),
        "ids": np.zeros((70, 2), np.int64),
        "rate": np.asarray(16000),
        "label": np.zeros(70, np.int64),
    }
    path = tmp_path / f"samples{suffix}"
    np.savez(path, **values) if suffix == ".npz" else save_file(values, path)
    assert {info.name: (info.dtype, info.shape) for info in arrays.declared(path)} == {
        "image": ("float32", ("batch", 3, 4)),  # numpy's default dtype is rarely the model's
        "half": ("float16", ("batch", 2)),
        "ids": ("int64", ("batch", 2)),
        "rate": ("int64", ()),
    }


def test_arrays_of_different_lengths_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, dense=np.zeros((8, 3)), offsets=np.zeros(8), indices=np.zeros(24), scale=1.0)
    with pytest.raises(InputRefused, match="dense 8, offsets 8, indices 24") as caught:
        arrays.check_counts(path)
    assert "axis 0 counts the samples" in str(caught.value.hint)


def test_what_arrays_declare_is_read_without_a_row(tmp_path: Path) -> None:
    """A row of a small file may be larger than the memory: here a petabyte, by its header."""
    header = io.BytesIO()
    shape = (2, 1 << 50)
    npy.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
    (found,) = arrays.declared(tmp_path / "a.npz")
    assert (found.name, found.dtype, found.shape) == ("x", "int8", ("batch", 1 << 50))
