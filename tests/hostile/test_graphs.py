"""Graphs that ask for more than their size lets expect: read and run within limits."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import InputRefused, WorkerFailed
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from tests.figures import Figures
from tests.hostile import growing_files, odd_files, onnx_files

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


ALL = {**onnx_files.SIZES, **onnx_files.GRAPHS, **GROWTH, **odd_files.ODD}
# optkit as a command that leaves the peaks of its own memory and of its children's, in KiB
MEASURED = """if True:
    import os, re, resource
    from optkit.cli import main
    try:
        main()
    finally:
        with open("/proc/self/status") as status, open(os.environ["PEAKS"], "w") as peaks:
            own = re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]  # ru_maxrss counts the parent's
            print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=peaks)
"""


@pytest.mark.slow
def test_every_malicious_graph_is_refused_or_bounded(
    tmp_path: Path, optkit_apart: Callable[..., Any], figures: Figures
) -> None:
    chosen = sorted(ALL)[:: figures.times(15, 1)]
    commands = (
        "inspect MODEL --json",
        "build MODEL -t cpu -p fp32 --json --defer --memory 1G --timeout 20s --out out",
    )
    done, ran, peaks = 0, 0, tmp_path / "peaks"
    for name in chosen:
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        path = ALL[name](folder)
        for line in commands:
            argv = [path if word == "MODEL" else word for word in line.split()]
            told = optkit_apart(
                *argv, cwd=folder.parent, cache=folder.parent / "cache",
                env={"PEAKS": str(peaks)}, command=[sys.executable, "-c", MEASURED],
            )  # fmt: skip
            assert told.code in (0, 5, 6), f"{name}: {told.err}"
            assert (told.json.get("error") is None) == (told.code == 0), name
            told.told()
            own, children = map(int, peaks.read_text().split())
            assert own < 300 << 10 and children < 1536 << 10, f"{name}: {own}, {children} KiB"
            done += 1
            ran += told.code == 0
    figures.tell(
        "malicious graphs", done,
        f"{len(chosen)} graphs (sizes, circles, bombs of functions, loops, texts and shapes, "
        "recursion, wrong types and opsets), each inspected and built: refused, stopped at the "
        "limit, or built; the command stays below 300 MiB, its children below 1.5 GiB",
        graphs=len(chosen), ended_well=ran,
    )  # fmt: skip
