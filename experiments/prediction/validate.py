"""Leave-one-GPU-out and leave-one-publication-out over the benchmark rows, beside two baselines and
the fit of before, and leave-one-kind-out over the kernels of an H200; writes results.json.

    python experiments/prediction/validate.py [--check]

`--check` writes nothing and exits 1 when the file is not what the rows give.

Each row is predicted by a model that was fitted without any row of its GPU (or of its publication),
and its interval comes from the errors of the other rows, each of which was left out itself.
Baseline 1: the naive roofline. Baseline 2: the same times one factor per category, fitted on the
other GPUs as well (the median of the logarithms; over all categories where the category has no
other GPU). `before`: the numbers and factors of 2026-11-20, fitted to rows 1 to 42.

`compiled`: rows of which compile_layers.py has compiled an engine, predicted once more as a build
predicts: from the layers of the engine, by the same fit that saw no row of the GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from math import exp, log
from statistics import mean, median
from typing import Any

import fitting
import numpy as np
import rows as r

from optkit.craft.prediction.work_time import Efficiencies

FILE = r.FOLDER / "results.json"
BEFORE = Efficiencies(0.771, 0.756, 0.222, 0.905, 0.152, 7780, 1.17, 9.15)
BEFORE_WIDTHS = {"all": 1.34, "convolution": 1.44, "decode": 1.21, "diffusion": 1.51,
                 "encoder": 1.29, "prefill": 1.43, "serving": 1.27, "ratio": 1.33,
                 "unseen": 1.76}  # fmt: skip
BEFORE_ROWS = 42  # of the file


def main() -> int:
    results = validate()
    text = json.dumps(results, indent=1) + "\n"
    if "--check" in sys.argv:
        same = text == FILE.read_text(encoding="utf-8")
        print("the same" if same else f"{FILE} is not what the rows give")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    for row in [*results["rows"], *results["kernels"]["rows"]]:
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
    for name in ("summary", "publications", "ratios", "kernels"):
        print(name, json.dumps(results[name]["all"]))
    return 0


def validate() -> dict[str, Any]:
    """Everything that results.json holds."""
    scored, excluded = r.load()
    kernels = r.kernels()
    fits = fitting.Fit([*scored, *kernels])
    near = fits.solve(np.full(len(fits.rows), True)).x
    errors = fitting.left_out(fits, near)
    engines = r.compiled()
    found, built = [], []
    for gpu, factors in _factors(errors, scored, lambda row: row.gpu).items():
        left = [row for row in scored if row.gpu == gpu]
        rest = [row for row in scored if row.gpu != gpu]
        eff = fits.numbers(fits.solve(np.asarray([row.gpu != gpu for row in fits.rows]), near).x)
        for row, seen in zip(left, fitting.covered(left, [*rest, *kernels]), strict=True):
            k = factors.get(row.category, factors["all"]) if seen else factors["unseen"]
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
    published = _left(errors, errors.publication, scored, lambda row: row.publication)
    before = [_judged(row, r.predicted(row, BEFORE), _before_width(row)) for row in scored]
    alone = [_judged(row, r.predicted(row, BEFORE), _before_width(row)) for row in kernels]
    single = _kernels(errors)
    return {
        "schema": "optkit.craft.prediction-validation/v2",
        "rows": found,
        "excluded": [{**_named(row), "reason": reason} for row, reason in excluded],
        "summary": _summary(found),
        "publications": _parted(published, ("category", "publication")),
        "ratios": _ratios(errors, scored),
        "kernels": {**_parted(single, ("kind",)), "rows": single,
                    "before": _parted(alone, ("kind",))},
        "before": {
            "rows of then": _parted(before[: _then(scored)], ("category",)),
            "new rows": _parted(before[_then(scored) :], ("category",)),
        },
        "new rows": {
            "gpus": _parted([one for one in found if one["row"] > BEFORE_ROWS], ("category",)),
            "publications": _parted(
                [one for one in published if one["row"] > BEFORE_ROWS], ("category",)
            ),
        },
        "compiled": {"rows": built, "summary": _errors(built)},
    }  # fmt: skip


def _then(scored: Sequence[r.Row]) -> int:
    return sum(row.number <= BEFORE_ROWS for row in scored)


def _before_width(row: r.Row) -> float:
    """Kernels had the interval of the kind of model that they are part of."""
    if row.category == r.KERNEL:
        return BEFORE_WIDTHS["convolution" if row.kind == "conv" else "encoder"]
    seen = row.target.compute_capability in ("8.0", "8.6", "8.9", "9.0")
    return BEFORE_WIDTHS[row.category if seen else "unseen"]


def _left(
    errors: fitting.Errors, size: np.ndarray, rows: Sequence[r.Row], by: Callable[[r.Row], str]
) -> list[dict[str, Any]]:
    """The rows, each predicted without its part, in the interval that the other parts give."""
    factors, made = _factors(errors, rows, by), []
    for row, error in zip(errors.rows, size, strict=True):
        if row in rows:
            width = factors[by(row)]
            k = width.get(row.category, width["all"])
            made.append(_judged(row, _of_error(row, error), k))
    return made


def _factors(
    errors: fitting.Errors, rows: Sequence[r.Row], by: Callable[[r.Row], str]
) -> dict[str, dict[str, float]]:
    """Part of the rows → the factors that the other parts give."""

    def others(part: str) -> dict[str, float]:
        return fitting.widths(errors.without(lambda row: by(row) == part))

    return {part: others(part) for part in dict.fromkeys(map(by, rows))}


def _kernels(errors: fitting.Errors) -> list[dict[str, Any]]:
    """Each kernel predicted without any of its kind, in the interval that the other kinds give."""
    made = []
    for row, error in zip(errors.rows, errors.kind, strict=True):
        if row.category == r.KERNEL:
            made.append(_judged(row, _of_error(row, error), fitting.of_kernels(errors, row.kind)))
    return made


def _of_error(row: r.Row, error: float) -> float:
    return row.value * (exp(-error) if row.faster_is_more else exp(error))


def _ratios(errors: fitting.Errors, scored: Sequence[r.Row]) -> dict[str, Any]:
    """Gains between two precisions, each predicted without its GPU and without its publication."""
    found: dict[str, list[dict[str, Any]]] = {"gpu": [], "publication": []}
    for name, sizes, by in (
        ("gpu", errors.gpu, lambda row: row.gpu),
        ("publication", errors.publication, lambda row: row.publication),
    ):
        factors = _factors(errors, scored, by)
        for i, j in fitting.pairs(scored):
            one, other = scored[i], scored[j]
            gain = r.taken(one) / r.taken(other)
            width, error = factors[by(one)], float(sizes[i] - sizes[j])
            k = width.get(f"ratio {one.category}", width["ratio"])
            if name == "gpu" and not fitting.covered([one], scored)[0]:
                k = width["ratio unseen"]
            found[name].append({
                "row": one.number, "to": other.number, "category": one.category,
                "gpu": one.gpu, "publication": one.publication,
                "precisions": [one.precision, other.precision], "measured": round(gain, 3),
                "predicted": round(gain * exp(error), 3), "half_width": round(k, 3),
                "inside": abs(error) <= log(k), "error": round(exp(error) - 1, 3),
            })  # fmt: skip
    return {
        "rows": found["publication"],
        "all": _errors(found["publication"]),
        "publications": _parted(found["publication"], ("category",)),
        "gpus": _parted(found["gpu"], ("category",)),
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
    def errors(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        bare, scaled = (
            [abs(row[key]) for row in chosen] for key in ("roofline_error", "one_factor_error")
        )
        return {
            **_errors(chosen),
            "roofline": {"median": round(median(bare), 3), "mean": round(mean(bare), 3)},
            "one_factor": {"median": round(median(scaled), 3), "mean": round(mean(scaled), 3)},
        }

    return _parted(rows, ("category", "gpu"), errors)


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


def _parted(
    rows: list[dict[str, Any]],
    keys: Sequence[str],
    errors: Callable[[list[dict[str, Any]]], dict[str, Any]] = _errors,
) -> dict[str, Any]:
    """The errors of all rows, and of each part of them by some key."""
    split = {
        key: {
            name: errors([row for row in rows if row[key] == name])
            for name in sorted({row[key] for row in rows})
        }
        for key in keys
    }
    return {"all": errors(rows), **split}


def _named(row: r.Row) -> dict[str, Any]:
    return {
        "row": row.number, "category": row.category, "kind": row.kind,
        "publication": row.publication, "model": row.model,
        "precision": row.precision, "batch": row.batch, "gpu": row.gpu, "metric": row.metric,
        "source": row.source,
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    raise SystemExit(main())
