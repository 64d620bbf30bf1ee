"""Files of safetensors that are written tensor by tensor are read by the library."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from optkit.road.packaging import shards
from optkit.road.packaging.shards import ShardWriter

DTYPES = (
    np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int64, np.int32,
    np.int8, np.uint8,
)  # fmt: skip
FORMS = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(FORMS, st.sampled_from((1, 64, 1000)), st.integers(0, 99))
def test_the_library_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    forms: list[tuple[type, list[int]]], limit: int, seed: int,
) -> None:  # fmt: skip
    """Of any dtype and size, so that sizes which are no multiple of eight bytes come in between."""
    rng = np.random.default_rng(seed)
    written = ShardWriter(tmp_path_factory.mktemp("f"), "pt", limit)
    tensors = {
        f"größe.{at}": rng.integers(-100, 100, shape).astype(dtype)
        for at, (dtype, shape) in enumerate(forms)
    }
    for name, tensor in tensors.items():
        written.add({name: np.asarray(tensor)})
    files = written.files()
    found = {}
    for path in files.values():
        if isinstance(path, Path):
            found |= load_file(str(path))
            with safe_open(path, "pt") as opened:
                assert opened.metadata() == {"format": "pt"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert tuple(found[name].shape) == tensor.shape
        held = found[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        assert held.tobytes() == np.ascontiguousarray(tensor).tobytes()
    if len(files) > 1:
        index = json.loads(bytes(files["model.safetensors.index.json"]))  # type: ignore[arg-type]
        assert index["weight_map"].keys() == tensors.keys()
        assert index["metadata"]["total_size"] == sum(each.nbytes for each in tensors.values())


def test_tensors_are_on_disk_before_the_file_ends(tmp_path: Path) -> None:
    written = ShardWriter(tmp_path, "pt")
    written.add({"a": np.ones((64, 64), np.float32)})
    assert (tmp_path / "0.safetensors").stat().st_size >= 64 * 64 * 4


def test_more_names_than_a_header_holds_make_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_HEADER", 4096)
    written = ShardWriter(tmp_path, "pt")
    for at in range(40):
        written.add({f"{at}": np.full(2, at, np.float32)})
    paths = [path for path in written.files().values() if isinstance(path, Path)]
    assert len(paths) > 1
    found = {name: value for path in paths for name, value in load_file(str(path)).items()}
    assert {name: value.tolist() for name, value in found.items()} == {
        str(at): [at, at] for at in range(40)
    }
