"""Leave-one-GPU-out over the benchmark rows, beside two baselines; writes results.json.

    python experiments/prediction/validate.py [--check]

`--check` writes nothing and exits 1 when the file is not what the rows give.

Each row is predicted by a model that was fitted without any row of its GPU, and its interval comes
from errors of GPUs left out among the rest (nested). Baseline 1: the naive roofline. Baseline 2:
the same times one factor per category, fitted on the other GPUs as well (the median of the
logarithms; over all categories where the category has no other GPU).

`compiled`: rows of which compile_layers.py has compiled an engine, predicted once more as a build
predicts: from the layers of the engine, by the same fit that saw no row of the GPU.
"""

from __future__ import annotations

import json
import sys
from math import exp, log
from statistics import mean, median
from typing import Any

import fitting
import rows as r

FILE = r.FOLDER / "results.json"


def main() -> int:
    results = validate()
    text = json.dumps(results, indent=1) + "\n"
    if "--check" in sys.argv:
        same = text == FILE.read_text(encoding="utf-8")
        print("the same" if same else f"{FILE} is not what the rows give")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    for row in results["rows"]:
        low, high = row["interval"]
        print(
            f"{row['row']:3} {row['category']:11} {row['gpu']:14} {row['model'][:20]:20} "
            f"{row['precision'][:10]:10} {row['batch'] or '-'!s:>5} {row['metric'][:15]:15} "
            f"{row['measured']:9.4g} {row['predicted']:9.4g} [{low:.4g}, {high:.4g}] "
            f"{row['error']:+.0%}"
        )
    for row in results["compiled"]["rows"]:
        low, high = row["interval"]
        print(
            f"{row['row']:3} layers of the engine: measured {row['measured']:.4g}, predicted "
            f"{row['predicted']:.4g} [{low:.4g}, {high:.4g}] {row['error']:+.0%}"
        )
    for row in results["excluded"]:
        print(f"{row['row']:3} not scored: {row['reason']}")
    print(json.dumps({"plans": results["summary"]["all"],
                      "builds": results["compiled"]["summary"]}, indent=1))  # fmt: skip
    return 0


def validate() -> dict[str, Any]:
    """Everything that results.json holds."""
    scored, excluded = r.load()
    engines = r.compiled()
    found, built = [], []
    for gpu in sorted({row.gpu for row in scored}):
        rest = [row for row in scored if row.gpu != gpu]
        eff = fitting.fit(rest)
        factors = fitting.widths(rest, fitting.left_out(rest))
        for row in (row for row in scored if row.gpu == gpu):
            k = factors.get(row.category, factors["all"])
            found.append(
                {
                    **_judged(row, r.predicted(row, eff), k),
                    "roofline_error": round(r.bound(row) / row.value - 1, 3),
                    "one_factor_error": round(_scaled(row, rest) / row.value - 1, 3),
                }
            )
            if row.number in engines:
                built.append(_judged(row, r.of_account(row, engines[row.number], eff), k))
    found.sort(key=lambda one: one["row"])
    built.sort(key=lambda one: one["row"])
    return {
        "schema": "optkit.craft.prediction-validation/v1",
        "rows": found,
        "excluded": [{**_named(row), "reason": reason} for row, reason in excluded],
        "summary": _summary(found),
        "compiled": {"rows": built, "summary": _errors(built)},
    }


def _judged(row: r.Row, value: float, k: float) -> dict[str, Any]:
    """A row beside its prediction, with the interval of the factor `k`."""
    return {
        **_named(row),
        "measured": row.value,
        "predicted": _short(value),
        "interval": [_short(value / k), _short(value * k)],
        "half_width": round(k, 3),
        "inside": value / k <= row.value <= value * k,
        "error": round(value / row.value - 1, 3),
    }


def _scaled(row: r.Row, rest: list[r.Row]) -> float:
    """The naive roofline times the category's factor over the other GPUs."""
    same = [other for other in rest if other.category == row.category] or rest
    factor = exp(median(log(_speed(o, o.value) / _speed(o, r.bound(o))) for o in same))
    return _speed(row, _speed(row, r.bound(row)) * factor)


def _speed(row: r.Row, value: float) -> float:
    """Latencies and speeds on one side; its own inverse."""
    return value if row.faster_is_more else 1 / value


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def of(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        bare, scaled = (
            [abs(row[key]) for row in chosen] for key in ("roofline_error", "one_factor_error")
        )
        return {
            **_errors(chosen),
            "roofline": {"median": round(median(bare), 3), "mean": round(mean(bare), 3)},
            "one_factor": {"median": round(median(scaled), 3), "mean": round(mean(scaled), 3)},
        }

    keys = ("category", "gpu")
    split = {
        key: {
            name: of([row for row in rows if row[key] == name])
            for name in sorted({row[key] for row in rows})
        }
        for key in keys
    }
    return {"all": of(rows), **split}


def _errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    return {
        "rows": len(rows),
        "median_error": round(median(errors), 3),
        "mean_error": round(mean(errors), 3),
        "worst_error": round(max(errors), 3),
        "inside": round(mean(row["inside"] for row in rows), 3),
        "median_half_width": round(median(row["half_width"] for row in rows), 3),
    }


def _named(row: r.Row) -> dict[str, Any]:
    return {
        "row": row.number, "category": row.category, "model": row.model,
        "precision": row.precision, "batch": row.batch, "gpu": row.gpu, "metric": row.metric,
        "source": row.source,
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    raise SystemExit(main())
