"""Graphs that ask for more than their size lets expect: read and run within limits."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from optkit import api
from optkit.errors import InputRefused, WorkerFailed
from optkit.workspace import Workspace
from tests.hostile import growing_files, onnx_files

GROWTH: dict[str, Callable[[Path], Path]] = {
    **onnx_files.GROWTH,
    **growing_files.EMPTY,
    **growing_files.TEXTS,
    **{name: build for name, (_, build) in growing_files.REFUSED.items()},
}


def _inspected(name: str, tmp_path: Path) -> WorkerFailed | None:
    """How `inspect` ended: None, or the verdict. Anything else fails the test."""
    (tmp_path / "foreign").mkdir()
    path = GROWTH[name](tmp_path / "foreign")
    assert path.stat().st_size < 2 << 20
    try:
        api.inspect(path, workspace=Workspace(tmp_path / "cache"))
    except WorkerFailed as error:
        return error
    except InputRefused:
        return None
    return None


def _verdict_and_peak(name: str, tmp_path: Path) -> tuple[str | None, int]:
    """The verdict, and the peak resident memory of the processes that inspected, in KiB."""
    failed = _inspected(name, tmp_path)
    return failed and failed.verdict, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GROWTH))
def test_every_way_to_grow_is_bounded(name: str, tmp_path: Path) -> None:
    # in a process of its own: the peak of children is that of all children there ever were
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        verdict, peak = pool.submit(_verdict_and_peak, name, tmp_path).result()
    assert verdict is None
    assert peak < 1 << 20  # 0: the intake refused it, and no process read it


@pytest.mark.slow
def test_given_limits_count_instead(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "cache", memory=32 << 20)
    (tmp_path / "foreign").mkdir()
    with pytest.raises(WorkerFailed, match="32 MiB"):  # the libraries need more
        api.inspect(GROWTH["read"](tmp_path / "foreign"), workspace=workspace)
