"""Published runs of servers beside what `optkit plan --serve` simulates for them.

    python experiments/serving/validate.py    writes results.json, and the table of the study

Nothing is fitted here: the times of passes are those of `optkit plan`, the engines are set as their
documentation says. A published figure is inside if it lies between the simulations with passes as
much faster and slower as the interval of `plan` for decoders that serve.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ruamel.yaml import YAML

from optkit.craft.prediction import memory
from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.serving import numbers_of
from optkit.facts.precisions import precision
from optkit.ground.devices import target
from optkit.satellites.serving.pass_times import PassTimes
from optkit.satellites.serving.run_figures import figures_of
from optkit.satellites.serving.served_run import ServingSystem, simulate
from optkit.satellites.serving.serving_policy import WHOLE_PROMPTS, ServingPolicy
from optkit.satellites.serving.token_lengths import TokenLengths
from optkit.satellites.serving.traffic import poisson

FOLDER = Path(__file__).resolve().parent
STUDY = FOLDER.parents[1] / "docs" / "studies" / "serving_plans.md"
BEGIN, END = "<!-- written by experiments/serving/validate.py -->", "<!-- end -->"
BLOCK = 16
_ALL_AT_ONCE = 1e9  # requests per second


def figures(run: dict[str, Any], shape: DecoderShape, slower: float) -> dict[str, float]:
    """The metrics of a run, simulated."""
    device, numbers = target(run["gpu"]), numbers_of(precision(run["precision"]))
    lengths = [TokenLengths.parse(str(run[name]), name) for name in ("prompt", "new")]
    capacity = float(device.memory_bytes or 0)
    rows = run["chunk"] or WHOLE_PROMPTS
    tokens = memory.cache_tokens(shape, numbers, capacity, rows, run["tensor"])
    batch = run["max_batch"]
    if run["engine"] == "TensorRT-LLM":  # it reserves a whole request: GUARANTEED_NO_EVICT
        batch = min(batch, int(tokens / sum(one.mean for one in lengths)))
    policy = ServingPolicy("continuous", run["chunk"] or None, batch, block=BLOCK)
    copies = run.get("copies", 1)
    part = 1 / copies  # one copy is simulated, with its part of the requests
    rate = run["rate"] * part if "rate" in run else _ALL_AT_ONCE
    count = round(run.get("requests", run.get("backlog")) * part)
    times = PassTimes(shape, numbers, device, run["tensor"], slower=slower)
    served = simulate(
        poisson(rate, *lengths, count, seed=0), ServingSystem(times, policy, int(tokens / BLOCK), 1)
    )
    found = figures_of(served, 95)
    written = sum(one.arrival.new for one in served.requests)
    return {
        "tokens_per_s": written / served.seconds * copies,
        "ttft_p50_ms": found.first.p50 * 1e3,
        "ttft_p99_ms": found.first.p99 * 1e3,
        "tpot_p50_ms": found.token.p50 * 1e3,
        "tpot_p99_ms": found.token.p99 * 1e3,
        "e2e_p50_ms": found.whole.p50 * 1e3,
    }


def rows(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One per published metric."""
    factor = fitted().widths["serving"]
    for number, run in enumerate(data["runs"], 1):
        shape = DecoderShape(*data["models"][run["model"]])
        middle, fast, slow = (figures(run, shape, by) for by in (1.0, 1 / factor, factor))
        print(number, run["engine"], run["model"], run["gpu"], flush=True)
        for metric, value in run["metrics"].items():
            low, high = sorted((fast[metric], slow[metric]))
            yield {
                "run": number,
                **{name: run[name] for name in ("engine", "model", "gpu", "precision", "tensor")},
                "load": f"{run['rate']:g} per s" if "rate" in run else "all at once",
                "prompt": run["prompt"],
                "output": run["new"],
                "metric": metric,
                "published": value,
                "predicted": middle[metric],
                "interval": [low, high],
                "inside": low <= value <= high,
                "seen": metric in run.get("seen", ()),
                "source": data["sources"][run["source"]]["text"],
            }


def summary(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By group: how many rows, how many inside, the median of predicted over published and of how
    far that is off."""
    groups = {
        "all": found,
        "not seen by the fit": [row for row in found if not row["seen"]],
        "throughput": [row for row in found if row["metric"] == "tokens_per_s"],
        "time to the first token": [row for row in found if row["metric"].startswith("ttft")],
        "time per token": [row for row in found if row["metric"].startswith("tpot")],
        "whole answer": [row for row in found if row["metric"].startswith("e2e")],
    }
    engines = dict.fromkeys(row["engine"] for row in found)
    groups |= {name: [row for row in found if row["engine"] == name] for name in engines}
    return {
        name: {
            "rows": len(group),
            "inside": sum(row["inside"] for row in group),
            "ratio": median(row["predicted"] / row["published"] for row in group),
            "off": median(abs(row["predicted"] / row["published"] - 1) for row in group),
        }
        for name, group in groups.items()
    }


def table(results: dict[str, Any]) -> str:
    """The tables of the study."""
    lines = [
        "| rows | count | inside | predicted / published | median error |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, one in results["summary"].items():
        lines.append(
            f"| {name} | {one['rows']} | {one['inside']} | {one['ratio']:.2f} | {one['off']:.0%} |"
        )
    lines += [
        "",
        "| engine | model, GPUs | load | prompt / answer | metric | published | predicted | in |",
        "|---|---|---|---|---|--:|--:|---|",
    ]
    for row in results["rows"]:
        low, high = row["interval"]
        seen = " (in the fit)" if row["seen"] else ""
        lines.append(
            f"| {row['engine']} "
            f"| {row['model']} {row['precision']}, {row['tensor']} × {row['gpu']} "
            f"| {row['load']} | {row['prompt']} / {row['output']} | {row['metric']}{seen} "
            f"| {row['published']:,.4g} | {row['predicted']:,.4g} ({low:,.3g} to {high:,.3g}) "
            f"| {'yes' if row['inside'] else 'no'} |"
        )
    return "\n".join(lines)


def main() -> None:
    data = YAML(typ="safe").load((FOLDER / "runs.yaml").read_text(encoding="utf-8"))
    found = list(rows(data))
    results = {"factor": fitted().widths["serving"], "summary": summary(found), "rows": found}
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = STUDY.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    STUDY.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
