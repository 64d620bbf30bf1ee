"""The same inputs give the same digest and the same bytes, wherever and however the build runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.reliability.conftest import Demo, Reference

FILES = ("model.onnx", "simulation.onnx", "baseline/model.onnx", "recipe.yaml")


def one_cpu() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "before"),
    [
        ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}, None),
        ({"PYTHONHASHSEED": "4242", "TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"}, one_cpu),
    ],
    ids=["first", "one-cpu"],
)
def test_a_cold_build_elsewhere_is_the_same(
    env: dict[str, str],
    before: Callable[[], None] | None,
    demo: Demo,
    reference: Reference,
    tmp_path: Path,
) -> None:
    """Another folder for the store, the artifact and the process, hash seed, time zone, locale."""
    folder = tmp_path / "a folder with ümlauts"
    folder.mkdir()
    done = demo.run(cwd=folder, env=env, before=before)
    assert done.code == 0, done.stderr
    assert done.result["cache_hits"] == 0
    assert demo.artifact.digest == reference.digest
    first, second = reference.demo.artifact.manifest.files, demo.artifact.manifest.files
    assert first.keys() == second.keys()
    assert {name: first[name] for name in FILES} == {name: second[name] for name in FILES}
    assert fields(done.result) == fields(reference.result)


def fields(result: dict[str, object]) -> dict[str, object]:
    """What does not depend on the clock, the compiler's timings and the folder."""
    return {
        key: result[key]
        for key in (
            "status",
            "model",
            "target",
            "precision",
            "accuracy",
            "fidelity",
            "drop",
            "gate",
        )
    }
