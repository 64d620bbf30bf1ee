"""What a search came to, as one plain object and as a table.

`optkit.tune/v1` (documents/tune.py). Every key is always there; null does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from optkit.devices import runs_here
from optkit.errors import Impossible, OptkitError
from optkit.evidence import Evidence
from optkit.report.result import plain
from optkit.tuning import Tuned
from optkit.tuning.space import Trial

TUNE = "optkit.tune/v1"


def document(
    tuned: Tuned,
    result: Mapping[str, Any],
    *,
    recipe: str,
    command: str,
    digest: str,
) -> dict[str, Any]:
    """The object. `result`: that of the winner's build; `recipe`: the file that reproduces it with
    `command`; `digest`: the artifact's. Raises ValueError for a figure that is not finite."""
    search, job = tuned.search, tuned.job
    measured = runs_here(job.target)
    missed = result["status"] == "gate_failed" or not tuned.keeps_budget
    found = {
        **empty("gate_failed" if missed else "ok"),
        "model": result["model"],
        "target": job.target.name,
        "precisions": list(tuned.precisions),
        "budget": tuned.budget.to_json(),
        "quantized": job.precision.name != search.space.carrier,
        "reason": reason(tuned),
        "artifact": result["artifact"],
        "digest": digest,
        "recipe": recipe,
        "command": command,
        "search": {
            "seed": search.seed, "trials": len(search.trials), "limit": tuned.options.trials,
            "failed": sum(t.outcome.failed is not None for t in search.trials),
            "converged": search.converged, "parallel": search.parallel,
        },
        "evidence": {
            "sqnr_db": Evidence.MEASURED if measured else Evidence.SIMULATED,
            "latency_ms": Evidence.MEASURED if measured else Evidence.PREDICTED,
            "bytes": Evidence.COMPILED,
        },
        "front": [_point(tuned, trial) for trial in tuned.front],
        "layers": layers(tuned),
        "excluded": dict(tuned.survey.fixed),
        "result": dict(result),
    }  # fmt: skip
    return plain(found)


def failed(error: OptkitError, *, model: str | None, target: str | None) -> dict[str, Any]:
    """The object of a search that came to no artifact."""
    facts = error.to_json()
    told = {key: facts[key] for key in ("code", "message", "where", "hint")}
    status = "impossible" if isinstance(error, Impossible) else "error"
    return {**empty(status), "error": told, "model": model, "target": target}


def empty(status: str) -> dict[str, Any]:
    """Every key, in its order."""
    return {
        "schema": TUNE, "status": status, "error": None, "model": None, "target": None,
        "precisions": [], "budget": None, "quantized": None, "reason": None, "artifact": None,
        "digest": None, "recipe": None, "command": None, "search": None, "evidence": None,
        "front": [], "layers": [], "excluded": {}, "result": None,
    }  # fmt: skip


def reason(tuned: Tuned) -> str | None:
    """Why nothing is quantized, where that is so; and where the budget is beyond reach, that."""
    carrier = tuned.search.space.carrier
    if tuned.winner is not None:
        return None
    if not tuned.keeps_budget:
        fresh = " on fresh samples" if tuned.verified else ""
        return f"no candidate keeps the limits{fresh}; this is the nearest"
    if tuned.verified:
        return f"nothing quantized keeps the budget on fresh samples; {carrier} does not need to"
    return f"{carrier} is as fast as anything quantized that keeps the budget, and more accurate"


def layers(tuned: Tuned) -> list[dict[str, Any]]:
    """Every group of layers, what costs most accuracy first: quantized alone in the first precision
    that it can have, and what became of it."""
    space, chosen = tuned.search.space, tuned.chosen.candidate
    total = sum(group.options[0].noise for group in space.groups) or 1.0
    rows = [
        {
            "layers": list(group.nodes),
            "precision": group.options[0].name,
            "sqnr_db": _decibels(group.options[0].noise),
            "divergence": group.options[0].divergence,
            "share": group.options[0].noise / total,
            "chosen": name,
        }
        for group, name in zip(space.groups, chosen.options, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["share"])


def _point(tuned: Tuned, trial: Trial) -> dict[str, Any]:
    outcome, job = trial.outcome, tuned.trials.as_job(trial.candidate)
    own = job.recipe.quantization
    fresh = next((one for one in tuned.verified if one.trial == trial), None)
    options = trial.candidate.options
    return {
        "precision": job.precision.name,
        "quantized": sum(
            len(group.nodes)
            for group, name in zip(tuned.search.space.groups, options, strict=True)
            if name != tuned.search.space.carrier
        ),
        "nodes": dict(own.nodes),
        "two_term": list(own.two_term),
        "placement": trial.candidate.placement,
        "sqnr_db": outcome.sqnr_db,
        "divergence": outcome.divergence,
        "latency_ms": outcome.latency_ms,
        "bytes": outcome.bytes,
        "bytes_moved": outcome.bytes_moved,
        "fused_layers": outcome.layers,
        "landed": outcome.landed,
        "planned": outcome.planned,
        "chosen": trial == tuned.chosen,
        "fresh": fresh and fresh.to_json(),
    }


def _decibels(noise: float) -> float | None:
    return -10 * log10(noise) if noise > 0 else None


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The front as cells of text, fastest first; the first row names the columns."""
    made = [["", "latency", "size", "sqnr", "drop on fresh samples", "quantized layers"]]
    for point in found["front"]:
        drop = (point["fresh"] or {}).get("drop")
        span = drop and drop["ci95"]
        told = "" if not drop else f"{drop['value']:.2%}"
        told += f" [{100 * span[0]:.2f}, {100 * span[1]:.2f}]" if span else ""
        made.append(
            [
                "*" if point["chosen"] else "",
                f"{point['latency_ms']:.4g} ms",
                f"{point['bytes'] / 2**20:.2f} MiB",
                "equal" if point["sqnr_db"] is None else f"{point['sqnr_db']:.1f} dB",
                told,
                f"{point['quantized']}, {point['precision']}",
            ]
        )
    return made


def markdown(found: Mapping[str, Any]) -> str:
    """The front and the layers as tables."""
    lines = [f"# {found['model']} on {found['target']}", ""]
    lines += [f"`{found['command']}`", ""] if found["command"] else []
    if found["reason"]:
        lines += [found["reason"], ""]
    table = rows(found)
    lines += _table(table[0], table[1:])
    lines += ["", "![front](front.svg)", "", "What costs most accuracy, quantized alone:", ""]
    ranked = [
        [", ".join(row["layers"]), f"{row['share']:.1%}",
         "equal" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f} dB", row["chosen"]]
        for row in found["layers"]
    ]  # fmt: skip
    lines += _table(["layers", "share of the noise", "alone", "became"], ranked)
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
