"""`optkit tune` under nine budgets: is each result inside its budget on data that is new to it?

    python experiments/tuning/budgets.py MODELS SCRATCH          everything, on one core or more
    python experiments/tuning/budgets.py MODELS SCRATCH --target l4  a part; results go to SCRATCH

MODELS has w2 (vision transformer) and w4 (decoder) as .onnx and .npz; experiments/peers writes
them into `peers/models` of its cache. SCRATCH gets stores and artifacts; a second
run goes on from there.

Three budgets each for the vision transformer on an L4 and on this CPU, and for the decoder on this
CPU. One line of JSON per check:

    finished   the search itself says that its result keeps the budget
    monotone   no point of the front is beaten by another in SQNR, latency and size at once, and its
               latencies rise
    limits     every limit of the budget, the recipe's gates included, against what the artifact
               comes to on the second half of the test data, which no search had (searches.py)

A drop is that of the task's metric: top-1 in points; for the decoder the mean log-likelihood of the
next token (nats), relative: a drop of d multiplies perplexity by exp(d · nats). Latency and size do
not depend on data.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import exp, inf
from pathlib import Path

import searches
from searches import Half, Json


@dataclass(frozen=True)
class Budget:
    """One search: `options` as on the command line."""

    workload: str
    target: str
    options: tuple[str, ...]


BUDGETS = (
    Budget("w2", "l4", ("--max-drop", "0.5%")),
    Budget("w2", "l4", ("--max-drop", "1%", "--min-sqnr", "50")),
    Budget("w2", "l4", ("--max-drop", "2%", "--max-size", "7M")),
    Budget("w2", "cpu", ("--max-drop", "0.5%")),
    Budget("w2", "cpu", ("--max-drop", "1%", "--min-sqnr", "50")),
    Budget("w2", "cpu", ("--max-drop", "2%", "--max-size", "3M")),
    Budget("w4", "cpu", ("--max-drop", "0.1%")),
    Budget("w4", "cpu", ("--min-sqnr", "57")),
    Budget("w4", "cpu", ("--max-size", "14M", "--min-sqnr", "52")),
)


def checks(budget: Budget, models: Path, scratch: Path, trials: int, seed: int) -> Iterator[Json]:
    """Search, and look at what it found."""
    model, folder = models / f"{budget.workload}.onnx", scratch / budget.workload
    searched, fresh = searches.split(models / f"{budget.workload}.npz", folder)
    store, log = scratch / "store", scratch / "log.txt"
    out = folder / f"{budget.target}{'-'.join(budget.options)}".replace("%", "")
    options = [*budget.options, "--trials", str(trials), "--seed", str(seed)]
    tuned = searches.answer(searches.tune(model, searched, budget.target, options, out), store, log)
    about = {
        "workload": budget.workload,
        "target": budget.target,
        "budget": " ".join(budget.options),
        "trials": tuned["search"]["trials"],
        "quantized": max((p["quantized"] for p in tuned["front"] if p["chosen"]), default=0),
    }
    yield {**about, "check": "finished", "holds": tuned["status"] == "ok"}
    front = tuned["front"]
    yield {**about, "check": "monotone", "points": len(front), "holds": is_monotone(front)}
    for row in limits(tuned, again(tuned, fresh, store, log)):
        yield {**about, "check": "limits", "samples": fresh.samples, **row}


def again(tuned: Json, fresh: Half, store: Path, log: Path) -> Json:
    """`optkit eval` of the winner's own recipe on the fresh half."""
    words = shlex.split(tuned["command"])
    assert words[:2] == ["optkit", "build"]
    return searches.answer(["eval", *words[2:], *fresh.as_task(), "--json"], store, log)


def limits(tuned: Json, fresh: Json) -> Iterator[Json]:
    """Every limit, and the value on fresh data where it depends on any."""
    drop, result = fresh["drop"], tuned["result"]
    score, baseline = fresh["accuracy"]["value"], fresh["baseline_accuracy"]["value"]
    told: Json = {"metric": fresh["accuracy"]["metric"], "score": score, "baseline": baseline}
    if told["metric"] == "log_likelihood":
        told |= {"perplexity": exp(-score), "baseline_perplexity": exp(-baseline)}
    sqnr = fresh["fidelity"]["sqnr_db"]
    found: Json = {
        "max_drop": {"value": drop["value"], "ci95": drop["ci95"], **told},
        "min_sqnr": {"value": inf if sqnr is None else sqnr},
        "max_latency_ms": {"value": result["latency"]["p50_ms"]},
        "max_bytes": {"value": result["size"] and result["size"]["bytes"]},
    }
    for name, limit in tuned["budget"].items():
        if limit is not None:
            row = found[name]
            kept = row["value"] >= limit if name == "min_sqnr" else row["value"] <= limit
            yield {"limit": {name: limit}, **row, "holds": kept}


def is_monotone(front: Sequence[Json]) -> bool:
    """Whether latencies rise and no point is beaten in everything by another."""
    points = [
        (p["latency_ms"], p["bytes"], -inf if p["sqnr_db"] is None else -p["sqnr_db"])
        for p in front
    ]
    rise = all(a[0] <= b[0] for a, b in pairwise(points))
    beaten = any(all(x <= y for x, y in zip(a, b, strict=True)) for a, b in permutations(points, 2))
    return rise and not beaten


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, help="the folder with w2 and w4")
    parser.add_argument("scratch", type=Path, help="a folder for stores and artifacts")
    parser.add_argument("--workload", choices=list(searches.NAMES))
    parser.add_argument("--target", choices=["l4", "cpu"])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = [
        one
        for one in BUDGETS
        if given.workload in (None, one.workload) and given.target in (None, one.target)
    ]
    scratch, lines = given.scratch.resolve(), []
    for budget in chosen:
        for line in checks(budget, given.models.resolve(), scratch, given.trials, given.seed):
            print(json.dumps(line), flush=True)
            lines.append(line)
    file = Path(__file__) if len(chosen) == len(BUDGETS) else scratch / "budgets"
    searches.report(lines, {}, file.with_suffix(".json"))


if __name__ == "__main__":
    main()
