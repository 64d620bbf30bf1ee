"""Write optkit/craft/prediction/efficiencies.yaml from the benchmark rows; the same rows give the
same file.

    python experiments/prediction/fit.py [--check]

`--check` writes nothing and exits 1 when the file is not what the rows give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fitting
import rows as r

FILE = Path(r.FOLDER).parents[1] / "optkit" / "craft" / "prediction" / "efficiencies.yaml"


def text() -> str:
    """The file's content. Numbers are rounded to three digits: more would be noise."""
    scored, _ = r.load()
    eff = fitting.fit(scored)
    spread = fitting.spreads(scored, eff)
    errors = fitting.left_out(scored)
    factors = fitting.widths(scored, errors)
    factors |= {"ratio": fitting.ratio(scored, errors), "unseen": fitting.unseen(scored)}
    generations = json.dumps(sorted({str(row.target.compute_capability) for row in scored}))
    lines = [
        "# Written by experiments/prediction/fit.py from benchmarks.yaml beside it; do not edit.",
        "# What each number does: the formula on top of latency.py. `spread`: one standard",
        "# deviation, relative (of overlap: absolute).",
        f"rows: {len(scored)}",
        f"generations: {generations} # compute capabilities among them",
        "fitted:",
    ]
    for name, prior in fitting.PRIORS.items():
        value = float(f"{getattr(eff, name):.3g}")
        lines.append(
            f"  {name}: {{value: {value:g}, spread: {spread[name]:.2g}, "
            f"prior: {prior.value:g}, prior_spread: {prior.spread:g},\n"
            f'    prior_source: "{prior.source}"}}'
        )
    lines += [
        "# Factor k of the interval [t / k, k · t] per category, from errors of GPUs left out;",
        "# `all` is that of a category without rows, `unseen` that of a kind of model or device",
        "# that no row covers, `ratio` that of a gain between two precisions.",
        "widths:",
        *(f"  {category}: {factor:.2f}" for category, factor in factors.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    made = text()
    if "--check" in sys.argv:
        same = made == FILE.read_text(encoding="utf-8")
        print("the same" if same else f"{FILE} is not what the rows give")
        return 0 if same else 1
    FILE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
