"""`optkit tune` killed ten times and resumed: does it end as if it had never been disturbed?

    python experiments/tuning/killed.py MODELS SCRATCH

Twice the same search (--target l4, --trials N, --seed S) of the vision transformer w2, each with an
empty store of its own. One runs undisturbed. The other gets SIGKILL at ten random moments and is
started again each time; only kills of a process that still ran count. Then it runs to its end. One
line of JSON per kill, with what the search had said last, and one per check: the manifest's digest,
the recipe, the front, the ranked layers and the account of the search must be equal.

MODELS as for budgets.py. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import searches
from searches import Json

_LEAST, _MOST = 0.05, 0.22  # of the undisturbed search: how long one attempt lives
_SAME = ("digest", "front", "layers", "search", "reason")


def disturb(
    words: Sequence[str], cache: Path, log: Path, seconds: float, rng: random.Random, kills: int
) -> Iterator[Json]:
    """Start it and kill it until `kills` have hit. `seconds`: what it takes undisturbed."""
    hits = 0
    while hits < kills:
        delay = rng.uniform(_LEAST, _MOST) * seconds
        started = time.monotonic()
        process = searches.start(words, cache, log)
        try:
            process.communicate(timeout=delay)
            continue  # it came to its end before
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert process.returncode == -9, process.returncode
        hits += 1
        lived = round(time.monotonic() - started, 1)
        yield {"kill": hits, "after_seconds": lived, "last_told": _last_line(log)}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def compare(calm: Json, resumed: Json) -> Iterator[Json]:
    """One check per thing that must be equal. Recipes without the line that names their folder."""
    for name in _SAME:
        yield {"check": name, "holds": calm[name] == resumed[name]}
    one, other = (
        [line for line in Path(found["recipe"]).read_text().splitlines() if line[:1] != "#"]
        for found in (calm, resumed)
    )
    yield {"check": "recipe", "holds": one == other}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, help="the folder with w2.onnx and w2.npz")
    parser.add_argument("scratch", type=Path, help="a folder for stores and artifacts")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    given = parser.parse_args()
    scratch, model = given.scratch.resolve(), given.models.resolve() / "w2.onnx"
    searched, _ = searches.split(model.with_suffix(".npz"), scratch)
    options = ["--max-drop", "1%", "--trials", str(given.trials), "--seed", str(given.seed)]
    words, stores, logs = {}, {}, {}
    for name in ("calm", "disturbed"):
        shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / name).mkdir()
        out = scratch / name / "out"
        words[name] = searches.tune(model, searched, "l4", options, out)
        stores[name], logs[name] = scratch / name / "store", scratch / name / "log.txt"
    started = time.monotonic()
    calm = searches.answer(words["calm"], stores["calm"], logs["calm"])
    seconds = time.monotonic() - started
    print(json.dumps({"undisturbed_seconds": round(seconds, 1)}), flush=True)
    kills, rest = [], (words["disturbed"], stores["disturbed"], logs["disturbed"])
    for kill in disturb(*rest, seconds, random.Random(given.seed), given.kills):
        print(json.dumps(kill), flush=True)
        kills.append(kill)
    resumed = searches.answer(*rest)
    lines = list(compare(calm, resumed))
    for line in lines:
        print(json.dumps(line), flush=True)
    facts = {
        "command": f"optkit tune w2.onnx --target l4 {' '.join(options)}",
        "undisturbed_seconds": round(seconds, 1),
        "kills": kills,
    }
    whole = given.kills == parser.get_default("kills")
    file = Path(__file__) if whole else scratch / "killed"
    searches.report(lines, facts, file.with_suffix(".json"))


if __name__ == "__main__":
    main()
