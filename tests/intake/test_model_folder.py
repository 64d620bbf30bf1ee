"""Hugging Face folders at the door: data is taken, code and pickles are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.facts.errors import InputRefused, UnsafeFile
from optkit.ground.intake import FileLimits, StagedFolder, stage_adapter, stage_folder

WEIGHT = {"w": np.arange(4, dtype=np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "tokenizer.json").write_text('{"a": 1}')
    save_file(WEIGHT, place / "model.safetensors")
    return place


def staged(folder: Path, *, code: bool = False) -> StagedFolder:
    return stage_folder(folder, folder.parent / "store" / "objects", code=code)


def refused(folder: Path) -> InputRefused:
    with pytest.raises(InputRefused) as caught:
        staged(folder)
    scratch = folder.parent / "store" / "tmp"
    assert not scratch.exists() or not list(scratch.iterdir())
    assert caught.value.exit_code == 5
    return caught.value


def test_only_data_is_taken_and_the_digest_is_that_of_the_content(folder: Path) -> None:
    found = staged(folder)
    assert set(found.files) == {"config.json", "tokenizer.json", "model.safetensors"}
    for name in ("own.py", "training_args.bin", "pytorch_model.bin", "model.onnx", "notes.txt"):
        (folder / name).write_bytes(b"x")
    again = staged(folder)
    assert (again.path, again.sha256) == (found.path, found.sha256)
    (folder / "tokenizer.json").write_text("{}")
    assert staged(folder).sha256 != found.sha256


def test_code_is_taken_where_it_may_run(folder: Path) -> None:
    (folder / "own.py").write_text("x = 1\n")
    assert "own.py" in staged(folder, code=True).files
    assert "own.py" not in staged(folder).files


def test_copies_are_made_anew_where_the_store_was_damaged(folder: Path) -> None:
    copy = staged(folder).path / "config.json"
    copy.chmod(0o644)
    copy.write_text("{...}")
    assert (staged(folder).path / "config.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt", "model.pt", "weights.pkl"])
def test_pickles_alone_are_refused(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    error = refused(folder)
    assert isinstance(error, UnsafeFile)
    assert name in error.message
    assert "safe_serialization=True" in str(error.hint)


def test_a_folder_without_config_or_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in refused(folder).message
    (folder / "config.json").unlink()
    assert "no config.json" in refused(folder).message


def test_shards_are_those_that_the_index_names(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    save_file(WEIGHT, folder / "model-2.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-1.safetensors"}}))
    assert "model-1.safetensors" in staged(folder).files
    assert "model-2.safetensors" not in staged(folder).files
    index.write_text(json.dumps({"weight_map": {"w": "model-3.safetensors"}}))
    assert "model-3.safetensors" in refused(folder).message


@pytest.mark.parametrize(
    "index",
    ["[]", "{", '{"weight_map": []}', '{"weight_map": {"w": "../model.safetensors"}}',
     '{"weight_map": {"w": "model.bin"}}', '{"weight_map": {"w": ["model.safetensors"]}}',
     '{"weight_map": {"w": "/etc/passwd"}}'],
)  # fmt: skip
def test_an_unsound_index_is_refused(folder: Path, index: str) -> None:
    """Although there are sound weights at the places that it names."""
    for place in (folder.parent / "model.safetensors", folder / "model.bin"):
        save_file(WEIGHT, place)
    (folder / "model.safetensors.index.json").write_text(index)
    assert isinstance(refused(folder), UnsafeFile)


def test_unsound_weights_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04 a pickle under another name")
    error = refused(folder)
    assert "safetensors" in error.message
    assert "model.safetensors" in str(error.where)


def test_links_out_of_the_folder_are_refused(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("{}")
    (folder / "vocab.json").symlink_to(secret)
    assert "link" in refused(folder).message
    (folder / "vocab.json").unlink()
    os.link(secret, folder / "vocab.json")
    assert "hard link" in refused(folder).message


def test_a_snapshot_of_the_hubs_cache_is_taken(folder: Path) -> None:
    blobs = folder.parent / "repo" / "blobs"
    snapshot = folder.parent / "repo" / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = f"{number:064x}"
        file.rename(blobs / blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")
    found = stage_folder(snapshot, folder.parent / "store" / "objects")
    assert set(found.files) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_an_adapter_is_its_config_and_its_weights(folder: Path) -> None:
    objects = folder.parent / "store" / "objects"
    with pytest.raises(InputRefused, match=r"no adapter_config\.json"):
        stage_adapter(folder, objects)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(UnsafeFile, match=r"adapter_model\.bin"):
        stage_adapter(folder, objects)
    save_file(WEIGHT, folder / "adapter_model.safetensors")
    found = stage_adapter(folder, objects)
    assert set(found.files) == {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.parametrize(
    ("name", "problem"), [("absent", "no such folder"), ("config.json", "it is no folder")]
)
def test_what_is_no_folder_is_no_adapter(folder: Path, name: str, problem: str) -> None:
    with pytest.raises(InputRefused, match=problem) as caught:
        stage_adapter(folder / name, folder.parent / "store" / "objects")
    assert caught.value.where == str(folder / name)
    assert "PEFT" in str(caught.value.hint)


def test_all_files_together_count_against_the_limit(folder: Path) -> None:
    objects = folder.parent / "store" / "objects"
    total = sum(file.stat().st_size for file in folder.iterdir())
    stage_folder(folder, objects, limits=FileLimits(data_bytes=total))
    with pytest.raises(UnsafeFile, match="the limit is"):
        stage_folder(folder, objects, limits=FileLimits(data_bytes=total - 1))


def test_a_tokenizer_of_many_gigabytes_is_refused(folder: Path) -> None:
    os.truncate(folder / "tokenizer.json", 3 << 30)
    assert "the limit is" in refused(folder).message


def test_a_name_that_no_report_can_show_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"own\xff.py")).touch()
    with pytest.raises(UnsafeFile, match="not UTF-8"):
        staged(folder, code=True)
