"""`cache clear` and `cache gc` beside builds and readers: no error, and never wrong bytes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.ground.intake.files import publish
from optkit.ground.store import Store, eviction, own_name

# Each key's bytes follow from the key, so that a reader knows them. The second entry is made from
# the first one, as a step is, while that must stay.
WORKER = """
import sys, time, traceback
from pathlib import Path
from optkit.ground.intake import stage_weights
from optkit.ground.store import Store, digest_json
root, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ends, turns, errors, wrong, warnings = time.monotonic() + seconds, 0, 0, 0, 0
while time.monotonic() < ends:
    store = Store(root)
    for n in range(4):
        turns += 1
        name = f"{(seed + turns) % 3}-{n}"
        first, second = digest_json(["first", name]), digest_json(["second", name])
        def produce(folder):
            (folder / "inner").mkdir()
            (folder / "inner" / "a").write_text(first * 50)
            return {}
        def further(folder):
            text = made.file("inner/a").read_text()
            time.sleep(0.002)
            (folder / "b").write_text(text + made.file("inner/a").read_text())
            return {}
        try:
            made, _ = store.make(first, "say", produce)
            then, _ = store.make(second, "say", further)
            time.sleep(0.001)
            wrong += made.file("inner/a").read_text() != first * 50
            wrong += then.file("b").read_text() != first * 100
            staged = stage_weights(root.parent / "weights", store.objects)
            time.sleep(0.001)
            wrong += staged.path.stat().st_size != staged.size
            store.remember(first, {"files": {}, "packages": {}})
        except Exception:
            traceback.print_exc()
            errors += 1
    warnings += len(store.warnings)
print(turns, errors, wrong, warnings)
"""
# All but a living user's own is old enough for `gc`.
CLEANER = """
import sys, time, traceback
from pathlib import Path
from optkit.ground.store import Store, eviction
eviction.IN_USE_SECONDS = 0
root, seconds = Path(sys.argv[1]), float(sys.argv[2])
ends, turns, errors, freed = time.monotonic() + seconds, 0, 0, 0
while time.monotonic() < ends:
    turns += 1
    try:
        store = Store(root)
        if turns % 2:
            eviction.gc(store, 0)
        else:
            eviction.clear(store)
        store.history(), list(store.entries())
    except Exception:
        traceback.print_exc()
        errors += 1
    time.sleep(0.003)
print(turns, errors, 0, 0)
"""


def _beside(root: Path, seconds: float, workers: int) -> list[list[int]]:
    """[turns, errors, wrong bytes, warnings] of each process; the cleaner is the last one."""
    save_file({"w": np.zeros(10_000, np.float32)}, root / "weights")
    scripts = [(WORKER, str(seed)) for seed in range(workers)] + [(CLEANER, "")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(root / "store"), str(seconds), seed],
            stdout=subprocess.PIPE, text=True,
        )
        for script, seed in scripts
    ]  # fmt: skip
    return [[int(one) for one in process.communicate()[0].split()] for process in started]


def _check(told: list[list[int]]) -> None:
    *workers, _ = told
    assert all(turns > 0 for turns, *_ in told)
    assert [errors for _, errors, *_ in told] == [0] * len(told)
    assert [wrong for _, _, wrong, _ in workers] == [0] * len(workers)
    assert [warnings for *_, warnings in workers] == [0] * len(workers)


def test_builders_and_a_cleaner(tmp_path: Path) -> None:
    _check(_beside(tmp_path, 1.0, 2))


@pytest.mark.slow
def test_many_builders_and_a_cleaner(tmp_path: Path) -> None:
    _check(_beside(tmp_path, 60.0, 6))


def _old(path: Path) -> None:
    then = time.time() - 9000
    os.utime(path, (then, then))


def test_what_a_running_command_has_used_stays(tmp_path: Path) -> None:
    for key in ("aa", "bb"):
        made, _ = Store(tmp_path).make(key, "say", lambda folder: {})
        _old(made.path / "entry.json")
    running = Store(tmp_path)
    running.remember("rr", {})
    assert running.get("aa") is not None
    work = running.objects.parent / "tmp" / own_name()
    work.mkdir()
    cleaner = Store(tmp_path)
    assert eviction.gc(cleaner, 0)[0] == 1  # bb, which nobody has used for long
    assert eviction.forget(cleaner, "say") == 0
    _, kept = eviction.clear(cleaner)
    assert [key for key, *_ in running.entries()] == ["aa"] and kept > 0
    assert work.is_dir() and running.recall("rr") == {}
    del running
    gc.collect()
    assert eviction.clear(cleaner)[1] == 0
    assert not list(cleaner.entries()) and not work.exists() and cleaner.recall("rr") is None


def test_a_file_that_replaces_a_used_one_stays(tmp_path: Path) -> None:
    """Its copy was written before the command began that uses the file."""
    running = Store(tmp_path)
    running.remember("rr", {})
    copy = tmp_path / "copy"
    copy.write_text("weights")
    _old(copy)
    place = publish(copy, running.objects, "ab" * 32)
    eviction.clear(Store(tmp_path))
    assert place.read_text() == "weights"


def test_a_user_that_was_killed_keeps_nothing(tmp_path: Path) -> None:
    Store(tmp_path).make("aa", "say", lambda folder: {})
    (tmp_path / "users").mkdir(exist_ok=True)
    (tmp_path / "users" / f"999999999-{own_name().partition('-')[2]}").touch()
    assert eviction.clear(Store(tmp_path))[1] == 0
    assert [path.name for path in (tmp_path / "users").iterdir()] == ["lock"]
