"""Does a test fail when the code is wrong? Each mutation of mutations.yaml changes one place of the
product; the tests named beside it must then fail.

    python experiments/mutations/run.py [--only TEXT] [--workers 2]

Works on copies in a temporary folder, and writes mutations.json beside itself: killed (a test
failed, or did not end), survived, or broken (the tests did not even start, so the mutation says
nothing). Exits 1 when fewer than 95 % are killed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from typing import Literal

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEAST = 0.95  # share to be killed
_COPIED = ("optkit", "tests")
_LINKED = (
    "calibration",
    "docs",
    "eval",
    "examples",
    "experiments",
    "recipes",
    "README.md",
    "pyproject.toml",
)
_SECONDS = 300
_FAILED = 1  # pytest's exit code
Outcome = Literal["killed", "survived", "broken"]


@dataclass(frozen=True)
class Mutation:
    """`old` stands once in `file` and becomes `new`; `tests` then fail, for they protect what
    `protects` says."""

    file: str
    old: str
    new: str
    protects: str
    tests: tuple[str, ...]


def mutations() -> list[Mutation]:
    """Those of mutations.yaml."""
    listed = YAML(typ="safe", pure=True).load((HERE / "mutations.yaml").read_text())
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in listed]


@contextmanager
def copy_of_the_project() -> Iterator[Path]:
    """A folder in which code and tests may be changed."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name)
        for part in _COPIED:
            shutil.copytree(ROOT / part, folder / part,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        for part in _LINKED:
            (folder / part).symlink_to(ROOT / part)
        yield folder


def outcome(mutation: Mutation, folder: Path) -> Outcome:
    """Of one mutation in a copy of the project, which is as before afterwards."""
    file = folder / mutation.file
    before = file.read_text()
    file.write_text(before.replace(mutation.old, mutation.new))
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
               *mutation.tests]  # fmt: skip
    try:
        code = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS,
                              check=False).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        code = _FAILED
    finally:
        file.write_text(before)
    return "killed" if code == _FAILED else "survived" if code == 0 else "broken"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutations whose file or purpose has this text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "mutations.json")
    asked = parser.parse_args()
    chosen = [one for one in mutations() if asked.only in f"{one.file} {one.protects}"]
    with ExitStack() as copies, ThreadPoolExecutor(asked.workers) as pool:
        folders: Queue[Path] = Queue()
        for _ in range(asked.workers):
            folders.put(copies.enter_context(copy_of_the_project()))

        def judge(mutation: Mutation) -> dict[str, object]:
            folder = folders.get()
            found = outcome(mutation, folder)
            folders.put(folder)
            print(f"{found:8} {mutation.file}: {mutation.protects}", flush=True)
            return {**asdict(mutation), "outcome": found}

        rows = list(pool.map(judge, chosen))
    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    counts = Counter(row["outcome"] for row in rows)
    print(", ".join(f"{count} {word}" for word, count in counts.most_common()))
    sys.exit(0 if counts["killed"] >= LEAST * len(rows) else 1)


if __name__ == "__main__":
    main()
