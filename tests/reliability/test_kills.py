"""kill -9 of the demo build at any moment, then the same command again: the same digest."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.figures import Figures
from tests.reliability.conftest import Demo

if TYPE_CHECKING:
    from tests.reliability.conftest import Finished, Reference

    Kill = Callable[[subprocess.Popen[str]], None]
    Finish = Callable[[subprocess.Popen[str]], Finished]

# those of the build, in its order
STEPS = ("export", "fuse", "collect", "cast", "calibrate", "quantize", "compile", "evaluate",
         "compare", "predict")  # fmt: skip
_STARTUP_SECONDS = 1.5  # of a build in which every step is a hit


def killed(process: subprocess.Popen[str], seconds: float, kill: Kill) -> bool:
    """Whether it still ran when its time was over."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        return True
    return False


def one_step_again(
    reference: Reference, folder: Path, step: str, rng: random.Random, kill: Kill, finish: Finish
) -> None:
    """A build with one step to do is killed once, at any instant of its time."""
    span = _STARTUP_SECONDS + reference.seconds[step]
    for attempt in itertools.count():
        demo = reference.fork(folder / str(attempt), without=(step,))
        process = demo.start()
        if killed(process, rng.uniform(0, span), kill):
            break
        assert finish(process).code == 0  # it was faster than its kill: another instant
    assert demo.store.verify()[1] == []
    assert demo.rebuilt() == reference.digest
    demo.assert_sound()


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2]
)
def test_a_kill_while_a_step_runs(
    seed: int, reference: Reference, tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    step = ("fuse", "cast", "quantize")[seed]
    one_step_again(reference, tmp_path, step, random.Random(seed), kill, finish)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_three_kills_while_each_step_runs(
    step: str, reference: Reference, tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    rng = random.Random(f"kill {step}")
    for turn in range(3):
        one_step_again(reference, tmp_path / str(turn), step, rng, kill, finish)


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_small_build(
    small_project: Path, tmp_path: Path, kill: Kill, figures: Figures
) -> None:
    """Each kill is followed by an undisturbed run in what is left."""
    started = time.monotonic()
    wanted = Demo.small(tmp_path / "reference", small_project).rebuilt()
    span = time.monotonic() - started
    rng, kills = random.Random(1), 0
    for attempt in itertools.count():
        demo = Demo.small(tmp_path / str(attempt), small_project)
        if killed(demo.start(), rng.uniform(0, span), kill):
            kills += 1
            assert demo.store.verify()[1] == []
        assert demo.rebuilt() == wanted
        demo.assert_sound()
        shutil.rmtree(tmp_path / str(attempt))
        if kills == figures.times(4, 30):
            break
    figures.tell(
        "kill -9 of a build at a random moment", kills,
        "the next run has the digest of an undisturbed build; no entry is torn, and nothing is "
        "left behind after a gc",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("done", [(), ("export", "fuse")], ids=["cold", "warm"])
def test_ten_kills_of_one_build(
    done: tuple[str, ...], reference: Reference, tmp_path: Path, kill: Kill
) -> None:
    """Each run goes on where the last one was killed."""
    rng = random.Random(f"kill {done}")
    left = reference.seconds["total"] - sum(reference.seconds[step] for step in done)
    kills, builds = 0, itertools.count()
    demo = reference.fork(tmp_path / str(next(builds)), without=set(STEPS) - set(done))
    while kills < 10:
        # long enough that the longest step ends sooner or later
        if killed(demo.start(), rng.uniform(0, _STARTUP_SECONDS + 0.5 * left), kill):
            kills += 1
            assert demo.store.verify()[1] == []
        else:
            assert demo.artifact.digest == reference.digest
            demo = reference.fork(tmp_path / str(next(builds)), without=set(STEPS) - set(done))
    assert demo.rebuilt() == reference.digest
    demo.assert_sound()


def orders(demo: Demo) -> set[Path]:
    """What workers were told to do, also those of builds that were killed."""
    return set(demo.cache.glob("tmp/*/task.json"))


@pytest.mark.slow
def test_a_kill_at_every_boundary(demo: Demo, reference: Reference, kill: Kill) -> None:
    """At the first start of a step, then at its end, then at the next start, and so on."""
    kills: list[str] = []
    while True:
        wanted = "end" if kills and kills[-1] == "start" else "start"
        before = orders(demo)
        process = demo.start()
        assert process.stderr is not None
        if wanted == "start":
            while not (reached := orders(demo) > before) and process.poll() is None:
                time.sleep(0.001)
        else:
            reached = any(re.match(r" +[\d.]+ s  ", line) for line in process.stderr)
        if reached:
            kill(process)
            kills.append(wanted)
            continue
        process.communicate()
        assert process.returncode == 0
        break
    # a step that runs beside a killed one starts again, where the machine gives both a core
    assert kills[::2] == ["start"] * (len(kills) // 2) and kills[1::2] == ["end"] * (
        len(kills) // 2
    )
    assert len(kills) >= 2 * len(demo.entries())
    assert demo.artifact.digest == reference.digest
    demo.assert_sound()


@pytest.mark.slow
def test_a_kill_while_the_artifact_is_written(
    reference: Reference, tmp_path: Path, kill: Kill
) -> None:
    """The older artifact stands or the new one does, whole."""
    demo = reference.fork(tmp_path)
    older = demo.run("build", "--recipe", "digits-vit", "--target", "l4", "--out", str(demo.out),
                     "--set", "gates.max_drop=5%", "--json")  # fmt: skip
    assert older.code == 0, older.stderr
    digests = {demo.artifact.digest, reference.digest}
    assert len(digests) == 2
    rng = random.Random(8)
    kills = 0
    while kills < 3:
        process = demo.start()
        while not any(demo.out.glob(".*.part")) and process.poll() is None:
            time.sleep(0.001)
        kills += killed(process, rng.uniform(0, 0.03), kill)
        assert demo.artifact.digest in digests
    assert demo.rebuilt() == reference.digest
    demo.assert_sound()
