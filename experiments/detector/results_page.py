"""results.md, from the results of run.py: a table, and how each figure is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BATCHES = (1, 16)
_HEAD = """# A detector in 8 bits: optkit beside its peers

Written by `python experiments/detector/run.py` on {date}; do not edit.

- **Machine:** {cpu}, {cores} cores, {vnni} VNNI, load average {load:.1f} after the run, Python {python}.
- **Versions:** {versions}.
- **Accuracy:** mean average precision in ONNX Runtime on the CPU over {scenes} scenes (for `l4`: simulated), in points. The drop is that of mAP@.5:.95 from optkit's FP16 graph for `l4`, with the 95 % interval of a paired bootstrap over scenes. Negative: better.
- **× FP32:** measured, interleaved in one process, two threads: the ratio of the minima over all rounds to the FP32 graph that torch exported, in brackets the median of the ratios of single rounds. Above 1 is faster.
- **Landed:** products that TensorRT-RTX computes in 8 bits for compute capability 8.9, of those that read both operands through a DequantizeLinear. Compiled, not run.
- **Calibration:** the same 256 scenes for every tool that calibrates.

"""  # noqa: E501


def table(found: Mapping[str, Any]) -> str:
    head = ("graph", "mAP@.5:.95", "mAP@.5", "drop from FP16, points [95 %]",
            *(f"× FP32 on this CPU, batch {batch}" for batch in BATCHES),
            "landed of planned, L4", "size")  # fmt: skip
    lines = [head, ("---",) * len(head)]
    lines += [_line(name, one, found["latency"]) for name, one in found["rows"].items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(name: str, one: Mapping[str, Any], times: Mapping[str, Any]) -> tuple[str, ...]:
    if "map" not in one:
        reason = " ".join(one["failure"].replace("|", "/").split())
        return (name, f"failed: {reason[:120]}", *[""] * (4 + len(BATCHES)))
    drop = one["drop"]
    landed = one.get("landing", {})
    return (
        name,
        f"{100 * one['map']:.2f}",
        f"{100 * one['map50']:.2f}",
        f"{drop['points']:.2f} [{drop['low']:.2f}, {drop['high']:.2f}]" if drop else "",
        *(_ratio(times[str(batch)].get(name)) for batch in BATCHES),
        f"{landed['landed']} of {landed['planned']}" if landed.get("planned") else
        ("refused" if "refused" in landed or "failure" in landed else ""),
        f"{one['bytes'] / 2**20:.2f} MiB",
    )  # fmt: skip


def _ratio(times: Mapping[str, float] | None) -> str:
    return f"{times['ratio']:.2f} ({times['median_ratio']:.2f})" if times else ""


def write(found: Mapping[str, Any]) -> str:
    own = found["machine"]
    versions = "; ".join(
        f"{name} ({', '.join(f'{key} {value}' for key, value in one.items())})"
        for name, one in found["versions"].items()
    )
    head = _HEAD.format(
        date=found["date"], cpu=own["cpu"], cores=own["cores"], load=own["load"],
        vnni="with" if own["vnni"] else "without", python=own["python"], versions=versions,
        scenes=found["rows"]["FP32"]["scenes"],
    )  # fmt: skip
    refused = "".join(f"- {name}: {why}\n" for name, why in _refusals(found["rows"]))
    told = f"\nTensorRT-RTX refuses:\n\n{refused}" if refused else ""
    return f"{head}{table(found)}\n{told}"


def _refusals(rows: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, one in rows.items():
        landing = one.get("landing", {})
        if reason := landing.get("refused") or landing.get("failure"):
            yield name, " ".join(reason.split())
