"""How often a test injects a fault: a few times when a change is tested, and at its full figure
with --figures FILE, where FILE then gets a row about it.
docs/studies/reliability.md shows these rows:

    make test-slow ARGS="tests/reliability --figures tests/reliability/figures.json"
    python -m tests.figures          # the page, from figures.json
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from optkit.ground.store import write_durably

ROOT = Path(__file__).resolve().parents[1]
JSON = ROOT / "tests" / "reliability" / "figures.json"
PAGE = ROOT / "docs/studies/reliability.md"
SUMMARY = ROOT / "docs/understand/reliability.md"
HEAD = """# Injected faults, and what became of them

Each row is a test that injects faults, run once in full on the day that the row names; none needs a
GPU. [What optkit survives](../understand/reliability.md) says what "survived" means. A change to
optkit runs these tests with fewer faults.

| what | faults | survived | how | day, commit, test |
|---|---|---|---|---|
"""
TAIL = """
To run rows again (the last column names their tests):

```sh
make test-slow ARGS="tests/reliability --figures tests/reliability/figures.json"
python -m tests.figures
```
"""


@dataclass(frozen=True)
class Figures:
    """`file`: where rows go; None when a change is tested. `test`: the id of the test."""

    file: Path | None
    test: str

    def times(self, few: int, full: int) -> int:
        """How often to inject the fault."""
        return few if self.file is None else full

    def tell(self, what: str, injected: int, how: str, **more: Any) -> None:
        """All of these faults were survived: the test calls this at its end. `what`: a unique name
        of the row; `how`: the kinds of faults, in a few words; `more`: for figures.json only."""
        if self.file is None:
            return
        commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT,
                                capture_output=True, text=True)  # fmt: skip
        row = {"injected": injected, "how": how, "test": self.test.partition("[")[0],
               "day": datetime.now(UTC).date().isoformat(), "commit": commit.stdout.strip(),
               **more}  # fmt: skip
        with FileLock(f"{self.file}.lock"):
            rows = json.loads(self.file.read_text()) if self.file.exists() else {}
            text = json.dumps({**rows, what: row}, indent=1, sort_keys=True)
            write_durably(self.file, f"{text}\n".encode())


def page(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"| {what} | {row['injected']:,} | all | {row['how']} | {row['day']}, {row['commit']}, "
        f"`{row['test'].partition('::')[0]}` |"
        for what, row in sorted(rows.items())
    ]
    return HEAD + "".join(f"{line}\n" for line in lines) + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(JSON.read_text())))
