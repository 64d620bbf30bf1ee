"""Many processes with one store: each step is made once, nobody waits for ever, nobody gets wrong
bytes, also if one is killed and another one removes what is old."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from optkit.ground.store import Meta, Store, eviction
from tests.figures import Figures

FORK = multiprocessing.get_context("fork")
TOO_LONG = 300.0  # seconds, only reached by processes that wait for each other


def make(store: Store, key: str, log: Path) -> None:
    def produce(folder: Path) -> Meta:
        (folder / "a").write_text(key * 50)
        time.sleep(0.002)
        with log.open("a") as file:
            file.write(f"{key}\n")
        return {"key": key}

    entry, _ = store.make(key, "say", produce)
    assert entry.file("a").read_text() == key * 50 and entry.meta == {"key": key}
    assert store.warnings == []


def same_keys(root: Path, rounds: int, barrier: Any) -> None:
    for number in range(rounds):
        barrier.wait(TOO_LONG)
        make(Store(root), f"{number:04d}", root.parent / "log")


def other_keys(root: Path, keys: list[str], seed: int) -> None:
    random.Random(seed).shuffle(keys)
    for key in keys:
        make(Store(root), key, root.parent / "log")


def remove(root: Path) -> None:
    while True:
        eviction.gc(Store(root), 0)


def started(target: Any, *arguments: Any) -> BaseProcess:
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def ended(processes: list[BaseProcess]) -> list[int | None]:
    ends = time.monotonic() + TOO_LONG
    for process in processes:
        process.join(max(0.0, ends - time.monotonic()))
    return [process.exitcode for process in processes]


def built(root: Path) -> Counter[str]:
    return Counter((root.parent / "log").read_text().split())


@pytest.mark.slow
def test_sixteen_processes_make_the_same_keys(tmp_path: Path, figures: Figures) -> None:
    rounds, count = figures.times(3, 50), 16
    barrier = FORK.Barrier(count)
    makers = [started(same_keys, tmp_path / "store", rounds, barrier) for _ in range(count)]
    assert ended(makers) == [0] * count
    assert built(tmp_path / "store") == {f"{number:04d}": 1 for number in range(rounds)}
    assert Store(tmp_path / "store").verify() == (rounds, [])
    figures.tell("16 processes need the same step", rounds * count,
                 f"{rounds} rounds at once: each step is made once")  # fmt: skip


@pytest.mark.slow
def test_eight_processes_make_many_keys_while_old_ones_are_removed(
    tmp_path: Path, figures: Figures
) -> None:
    """And one of them is killed at a random moment."""
    turns, count, keys = figures.times(2, 20), 8, [f"{number:04d}" for number in range(50)]
    for turn in range(turns):
        root, rng = tmp_path / str(turn) / "store", random.Random(turn)
        root.parent.mkdir()
        makers = [started(other_keys, root, keys, seed) for seed in range(count)]
        remover, unlucky = started(remove, root), makers.pop(rng.randrange(count))
        time.sleep(rng.uniform(0, 0.3))
        unlucky.kill()
        assert ended([*makers, unlucky])[:-1] == [0] * (count - 1)
        remover.kill()
        remover.join()
        made = built(root)
        # what the killed one had made without publishing it is made again
        assert set(made) == set(keys) and made.total() <= len(keys) + 1
        assert Store(root).verify() == (len(keys), [])
        eviction.gc(Store(root), 1 << 40)
        assert not list(root.glob("tmp/*"))
    figures.tell("8 processes make 50 keys, one is killed", turns * len(keys),
                 f"{turns} turns, beside a process that removes old entries")  # fmt: skip
