"""Samples that belong together: named by the source, by a column, by folders, or by the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optkit.craft.benchmarking.accuracy import EvaluationTask, pool
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import images, labelled, spool_writer
from optkit.ground.data.spool import Spool

X = (TensorInfo("x", "float32", ("batch", 2)),)
CLIPS = ["a", "a", "b", "b", "b", "c", "a"]


def written(batches: Any, path: Path, inputs: Any = X) -> Spool:
    spool_writer.write(batches, path, inputs, limit_samples=None, memory_bytes=1 << 20,
                progress=lambda *_: None, fill=True)  # fmt: skip
    return Spool(path)


def batches(*sizes: int, slices: bool = False) -> Any:
    first = 0
    for size in sizes:
        k = np.arange(first, first + size)
        feed = {"x": np.stack([k, k], 1).astype(np.float32)}
        yield feed, k, ["s"] * size if slices else None, [CLIPS[one] for one in k]
        first += size


@pytest.mark.parametrize("slices", [True, False])
def test_groups_are_kept_with_their_samples(tmp_path: Path, slices: bool) -> None:
    found = written(batches(4, 3, slices=slices), tmp_path / "all")
    assert found.groups() == CLIPS
    assert found.slices() == (["s"] * 7 if slices else [str(k) for k in range(7)])
    found.to_file(tmp_path / "one.safetensors", {})
    assert Spool(tmp_path / "one.safetensors").groups() == CLIPS
    part = written(found.chosen([5, 1, 2]), tmp_path / "part")
    assert part.groups() == ["a", "b", "c"]
    bare = written(((feed, labels) for feed, labels, *_ in batches(4, 3)), tmp_path / "bare")
    assert bare.groups() == [] and bare.digest != found.digest


def test_every_sample_has_a_group_or_none(tmp_path: Path) -> None:
    items = list(batches(2, 2))
    for number, wrong in enumerate((items[1][:2], (*items[1][:3], ["a"]))):
        with pytest.raises(InputRefused, match="groups for a batch of 2") as caught:
            written([items[0], wrong], tmp_path / str(number))
        assert caught.value.where == "sample 2"


def test_an_array_names_the_groups(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((3, 2), np.float32), label=[0, 1, 1], clip=[7, 7, 9])
    found = written(labelled.samples(path, group="clip", inputs={"x": X[0]}), tmp_path / "spool")
    assert found.groups() == ["7", "7", "9"] and found.slices() == ["0", "1", "1"]
    with pytest.raises(InputRefused, match="clp"):
        list(labelled.samples(path, group="clp", inputs={"x": X[0]}))


@pytest.mark.parametrize("clips", [1, 3])
def test_folders_within_class_folders_are_groups(tmp_path: Path, clips: int) -> None:
    """class/clip/frame.png; one folder in each class tells nothing that the class does not."""
    for kind in ("cat", "dog"):
        for clip in range(clips):
            for frame in range(2):
                file = tmp_path / kind / f"clip{clip}" / f"{frame}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (4, 4)).save(file)
    Image.new("RGB", (4, 4)).save(tmp_path / "cat" / "alone.png")
    found = [
        name
        for _, _, *more in images.labelled(
            tmp_path, classes=None, preprocessing="unit", size=4, resize=None, mean=None, std=None,
            processor=None, model=None, inputs=None,
        )
        for name in (more[1] if more else [])
    ]  # fmt: skip
    if clips == 1:
        assert len(set(found)) in (0, 3)
        return
    assert len(found) == 13 and len(set(found)) == 7
    assert sorted(map(found.count, set(found))) == [1, 2, 2, 2, 2, 2, 2]


def kept(rows: np.ndarray) -> PartialScores:
    found = PartialScores(None)
    found.add(rows)
    return found


def test_what_combine_makes_of_two_samples_has_the_group_of_the_first() -> None:
    names = ["p", "p", "q", "q", "p", "p"]
    task = EvaluationTask("m", lambda *_: np.zeros(0), combine=lambda rows: rows[::2])
    found = pool(kept(np.arange(6.0)), task, evidence=Evidence.SIMULATED, groups=names)
    assert found.groups == (0, 1, 0)
    odd = EvaluationTask("m", lambda *_: np.zeros(0), combine=lambda rows: rows[:4])
    with pytest.raises(InputRefused, match="4 rows for 6"):
        pool(kept(np.arange(6.0)), odd, evidence=Evidence.SIMULATED, groups=names)


def test_windows_of_one_text_are_a_group(folder: Path, tmp_path: Path) -> None:
    from optkit.ground.data import language

    path = tmp_path / "texts.jsonl"
    path.write_text("".join(f'{{"text": "{" ".join(["word"] * n)}"}}\n' for n in (60, 5, 90)))
    items: list[Any] = list(language.windows(path, length=8, stride=4, tokenizer=folder))
    groups = np.concatenate([names for *_, names in items]).tolist()
    assert groups == sorted(groups) and groups[0] == 1 and groups[-1] == 3
    assert groups.count(3) > groups.count(1) > 3
    assert all(one <= other for one, other in pairwise(groups))
    plain = tmp_path / "text.txt"
    plain.write_text(path.read_text())
    assert {len(item) for item in language.windows(plain, length=8, tokenizer=folder)} == {2}
