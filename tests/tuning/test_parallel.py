"""The number of trials that run at the same time, and the messages about them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.errors import UsageError
from optkit.ground.recipe import Recipe
from optkit.road import jobs
from optkit.road.pipeline import Job
from optkit.satellites import tuning
from optkit.satellites.tuning import SearchOptions
from optkit.satellites.tuning.quiet import Quiet
from optkit.verbs.cli.commands.builds import tune as command

RECIPE = Recipe.from_dict({"name": "small"})


def parallel(target: str, cores: int | None, trials: int = 24, asked: int | None = None) -> int:
    job = Job(RECIPE, *jobs.pair(target, "int8"))
    cluster: Any = None if cores is None else SimpleNamespace(cores=lambda: cores)
    return tuning._parallel(job, SearchOptions(trials=trials, parallel=asked), cluster)


@pytest.mark.parametrize(
    ("target", "cores", "asked", "expected"),
    [
        ("l4", None, None, 1),
        ("l4", None, 1, 1),
        ("l4", 1, None, 1),
        ("l4", 4, None, 4),
        ("l4", 100, None, 6),  # a quarter of 24 trials
        ("l4", 4, 10, 10),
        ("cpu", 4, None, 1),
        ("cpu", 4, 1, 1),
    ],
)
def test_as_many_as_the_cluster_has_cores_unless_too_few_rounds_were_left(
    target: str, cores: int | None, asked: int | None, expected: int
) -> None:
    assert parallel(target, cores, asked=asked) == expected
    assert parallel(target, cores, trials=3, asked=asked) == (asked or 1)


@pytest.mark.parametrize(("target", "cores", "told"), [("l4", None, "--on ray"), ("cpu", 4, "out")])
def test_more_than_one_is_refused_where_it_cannot_be(
    target: str, cores: int | None, told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parallel(target, cores, asked=2)
    assert caught.value.where == "--parallel 2" and told in str(caught.value.hint)


def test_the_command_tells_how_many_trials_there_are_without_being_asked() -> None:
    """Its help cannot ask: that would load what a search needs."""
    option: Any = next(one for one in command.params if one.name == "trials")
    assert option.help.endswith(f"default: {tuning.TRIALS}.")


def test_trials_of_several_threads_are_told_apart() -> None:
    said: list[tuple[Any, ...]] = []
    both = threading.Barrier(2, timeout=30)
    listener: Any = SimpleNamespace(
        start=lambda step, label: said.append(("start", label)),
        progress=lambda what, fraction: said.append(("progress", what)),
        done=lambda step, label, hit, seconds: said.append(("done", label, hit)),
    )
    quiet = Quiet(listener)

    def trial(name: str) -> None:
        quiet.begins(name)
        quiet.start("compile", f"compile {name}")
        both.wait()
        quiet.progress("half", 0.5)
        quiet.told(name)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(trial, "ab"))
    quiet.told("c")
    assert {("progress", "compile a, half"), ("progress", "compile b, half")} < set(said)
    assert {("done", "a", False), ("done", "b", False), ("done", "c", True)} < set(said)
