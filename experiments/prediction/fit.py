"""Write optkit/craft/prediction/efficiencies.yaml from the benchmark rows and the kernels of
experiments/gpu; the same rows give the same file.

    python experiments/prediction/fit.py [--check]

`--check` writes nothing and exits 1 when the file is not what the rows give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fitting
import numpy as np
import rows as r

FILE = Path(r.FOLDER).parents[1] / "optkit" / "craft" / "prediction" / "efficiencies.yaml"


def text() -> str:
    """The file's content. Numbers are rounded to three digits: more would be noise."""
    scored, _ = r.load()
    rows = [*scored, *r.kernels()]
    fits = fitting.Fit(rows)
    found = fits.solve(np.full(len(rows), True))
    eff, spread = fits.numbers(found.x), fitting.deviations(found)
    errors = fitting.left_out(fits, found.x)
    generations = json.dumps(sorted({str(row.target.compute_capability) for row in scored}))
    lines = [
        "# Written by experiments/prediction/fit.py from benchmarks.yaml beside it and the kernels",
        "# of experiments/gpu; do not edit. What each number does: the formula on top of",
        "# work_time.py. `spread`: one standard deviation, relative (of overlap: absolute).",
        f"rows: {len(scored)}",
        f"kernels: {len(rows) - len(scored)}",
        f"generations: {generations} # compute capabilities among them",
        "fitted:",
    ]
    for place, (name, prior) in enumerate(fitting.PRIORS.items()):
        value = float(f"{getattr(eff, name):.3g}")
        lines.append(
            f"  {name}: {{value: {value:g}, spread: {spread[place]:.2g}, "
            f"prior: {prior.value:g}, prior_spread: {prior.spread:g},\n"
            f'    prior_source: "{prior.source}"}}'
        )
    lines += [
        "# Factors of a generation on the above: of products, and of the cycles of a launch. They",
        f"# start at 1, with a relative spread of {fitting.OWN_SPREAD:g}.",
        "own:",
    ]
    for place, (name, factor) in enumerate(eff.own.items(), len(fitting.PRIORS)):
        lines.append(f'  "{name}": {{value: {factor:.3g}, spread: {spread[place]:.2g}}}')
    lines += [
        "# Factor k of the interval [t / k, k · t] per category, from errors of GPUs and of",
        "# publications left out; `all` is that of a category without rows, `unseen` of a kind of",
        "# model or a generation that no row covers. `ratio`: of a gain between two precisions.",
        "widths:",
        *(f'  "{name}": {factor:.2f}' for name, factor in fitting.widths(errors).items()),
        "# Of these, what fewer than four pairs of a publication and a GPU measured: how many did.",
        f"few: {json.dumps(fitting.few(errors))}",
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
