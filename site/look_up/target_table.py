"""docs/reference/target_table.md: every target with its figures and their sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from look_up import markdown
from optkit.facts.device_facts import Fact
from optkit.ground.devices.table import Target, data_names, read, sources

UNKNOWN = "–"
PEAKS = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "fp6", "fp4")
UNITS = {
    "boost_mhz": "MHz",
    "memory_gb": "GB",
    "memory_mib": "MiB",
    "bandwidth_gbs": "GB/s",
    "l2_mb": "MiB",
    "tdp_w": "W",
    "pcie_gbs": "GB/s",
    "nvlink_gbs": "GB/s",
}

LABELS = {
    "sm_count": "multiprocessors or cores",
    "boost_mhz": "boost clock",
    "memory_gb": "memory",
    "memory_mib": "memory as the driver reports it",
    "bandwidth_gbs": "memory bandwidth",
    "l2_mb": "L2 cache",
    "tdp_w": "board power",
    "pcie_gen": "PCIe generation",
    "pcie_lanes": "PCIe lanes",
    "pcie_gbs": "PCIe bandwidth",
    "nvlink_gbs": "bandwidth to other GPUs (NVLink and its like)",
    "nvlink_gpus": "GPUs that are joined so",
    "ane_tops": "peak of the Neural Engine, TOP/s",
}


def page() -> str:
    targets = [read(name) for name in data_names()]
    cpus = [target for target in targets if target.is_cpu]
    others = [target for target in targets if not target.is_cpu]
    return markdown.page(
        "# Table of targets",
        "Every device that `--target` takes, besides `cpu`, which is this machine. "
        "[Targets](targets.md) says what optkit tunes for each. `optkit targets NAME` prints one "
        "of them. " + markdown.made_from("`optkit/ground/devices/data/*.yaml`"),
        "A figure is *read* in its source; or *computed* from other figures that were read; or "
        "*unverified*: nobody read it in a source, or it rests on such a figure. In the first two "
        "tables an unverified figure has a question mark.",
        "## GPUs and accelerators",
        "Peak rates are dense, in TFLOP/s (integers: TOP/s); a multiply-add counts as two "
        f"operations. {UNKNOWN}: not known, or no such hardware.",
        markdown.table(
            [
                "target",
                "device",
                "compute capability",
                "memory GB",
                "bandwidth GB/s",
                *(dtype.upper() for dtype in PEAKS),
            ],
            map(_gpu, others),
        ),
        "## CPUs",
        "Peak rates are operations per cycle of one physical core.",
        markdown.table(
            [
                "target",
                "device",
                "instruction sets",
                "bandwidth GB/s",
                *(dtype.upper() for dtype in ("fp32", "fp16", "bf16", "int8")),
            ],
            map(_cpu, cpus),
        ),
        "## Every figure",
        "*Precisions* are the formats of the hardware, of which optkit [builds "
        "some](../understand/quantization.md#precisions). A kernel of a CPU has 10⁹ multiply-adds "
        "per second of one core (`gmacs`), or nanoseconds per element (`ns`).",
        *(part for target in targets for part in _section(target)),
        "## Sources",
        markdown.table(["source", "text"], sorted(_sources(targets))),
    )


def _gpu(target: Target) -> list[str]:
    facts = target.facts
    return [
        _name(target),
        target.title,
        _shown(facts.get("compute_capability")),
        _shown(facts.get("memory_gb")),
        _shown(facts.get("bandwidth_gbs")),
        *(_shown(target.peaks.get(dtype)) for dtype in PEAKS),
    ]


def _cpu(target: Target) -> list[str]:
    rates = (target.ops_per_cycle.get(dtype) for dtype in ("fp32", "fp16", "bf16", "int8"))
    return [
        _name(target),
        target.title,
        f"{target.machine}: {' '.join(target.features)}",
        _shown(target.facts.get("bandwidth_gbs")),
        *map(_shown, rates),
    ]


def _name(target: Target) -> str:
    return f"[`{target.name}`](#{markdown.anchor(target.name)})"


def _shown(fact: Fact | None) -> str:
    if fact is None or fact.value is None:
        return UNKNOWN
    return str(fact.value) if fact.verified else f"{fact.value}?"


def _section(target: Target) -> Iterator[str]:
    """The figures of a target, each with its source, and what runs on it."""
    yield f"### {target.name}"
    names = ", also " + markdown.words(target.aliases) if target.aliases else ""
    yield f"{target.title} ({target.arch}){names}."
    if target.backends:
        yield "Backends: " + "; ".join(
            markdown.code(one.name) + (f" ({one.note})" if one.note else "")
            for one in target.backends
        )
        yield "Precisions: " + ", ".join(_answers(target))
    else:
        yield "optkit compiles nothing for it: `optkit plan` compares its figures."
    yield markdown.table(["figure", "value", "how known", "source", "note"], _figures(target))


def _answers(target: Target) -> Iterator[str]:
    for column, support in target.precisions.items():
        if support.answer != "no":
            note = "" if support.answer == "yes" else f" ({support.answer})"
            yield markdown.code(column) + note


def _figures(target: Target) -> Iterator[tuple[str, ...]]:
    for name, fact in target.facts.items():
        yield _figure(LABELS.get(name, name), UNITS.get(name, ""), fact)
    groups: tuple[tuple[str, str, Mapping[str, Fact]], ...] = (
        ("peak", "T/s", target.peaks),
        ("reached by products", "T/s", target.sustained),
        ("operations per cycle", "", target.ops_per_cycle),
        ("kernel", "", target.kernels),
    )
    for group, unit, facts in groups:
        for name, fact in facts.items():
            yield _figure(f"{group} {name}", unit, fact)
    for price in target.prices:
        known = "read" if price.verified else "unverified"
        value = f"{price.usd_per_hour} US dollars per hour"
        yield f"price, {price.provider}", value, known, price.source, f"as of {price.as_of}"


def _figure(name: str, unit: str, fact: Fact) -> tuple[str, ...]:
    known = ("computed" if fact.derived else "read") if fact.verified else "unverified"
    value = UNKNOWN if fact.value is None else f"{fact.value} {unit}".strip()
    return name.replace("_", " "), value, known, fact.source, fact.note or ""


def _sources(targets: list[Target]) -> set[tuple[str, str]]:
    texts = sources()
    return {(key, texts[key]) for target in targets for key in target.cited()}
