"""The benchmark rows, which of them can be predicted, and what the model says of each.

A row is excluded by rule alone, before anything is scored: EXCLUDED names the rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import workloads as w
from ruamel.yaml import YAML

from optkit.craft.prediction.card_kernels import products, work_of
from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape, prefill, step
from optkit.craft.prediction.work import Work
from optkit.craft.prediction.work_time import Efficiencies, seconds
from optkit.ground.devices import Target, target

FOLDER = Path(__file__).resolve().parent

# Form factor not stated: taken for the SXM board (the PCIe one has 5 % less bandwidth).
GPU_OF = {
    "a100-80gb (form factor not stated)": "a100-sxm-80gb",
    "a100-40gb (form factor not stated)": "a100-sxm-40gb",
    "a100 (form factor not stated)": "a100-sxm-80gb",
}
# What the collected rows say of a precision that nobody stated.
_UNSTATED = ("unknown", "not read", "not stated", "convention")

EXCLUDED: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("the batch size is not known", lambda row: row["batch"] is None),
    ("the precision is not known",
     lambda row: any(mark in row["precision"] for mark in _UNSTATED)),
    ("an engine in FP32 may multiply in TF32, which is not stated",
     lambda row: row["precision"] == "fp32"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement. `value`: per GPU, in `metric`; `category`: what shares an interval."""

    number: int
    model: str
    precision: str
    batch: int | str | None
    gpu: str
    metric: str
    value: float
    category: str
    source: str
    data: dict[str, Any]

    @property
    def target(self) -> Target:
        return _target(self.gpu)

    @cached_property
    def kind(self) -> str:
        """Its category; of a kernel, what it computes in which type."""
        return str(self.data.get("kind", self.category))

    @cached_property
    def publication(self) -> str:
        """What one party published: all of MLPerf is one, as NVIDIA's code made its engines."""
        name = self.source.split("#")[0].split("@")[0].split(" (")[0]
        return "mlcommons" if name.startswith("mlcommons/") else name

    @property
    def faster_is_more(self) -> bool:
        return not self.metric.endswith("_ms")


_target = cache(target)


def load() -> tuple[list[Row], list[tuple[Row, str]]]:
    """The rows to score, and those that a rule excludes with the reason."""
    data = YAML(typ="safe").load((FOLDER / "benchmarks.yaml").read_text(encoding="utf-8"))
    scored, excluded = [], []
    for number, row in enumerate(data["benchmarks"], 1):
        made = Row(
            number, row["model"], row["precision"], row["batch"],
            GPU_OF.get(row["gpu"], row["gpu"]), row["metric"], float(row["per_gpu"]),
            _category(row), row["source"], row,
        )  # fmt: skip
        reasons = [reason for reason, applies in EXCLUDED if applies(row)]
        if reasons:
            excluded.append((made, "; ".join(reasons)))
        else:
            scored.append(made)
    return scored, excluded


KERNEL = "kernel"


def kernels() -> list[Row]:
    """The kernels of experiments/gpu that an H200 ran, numbered behind the rows."""
    results = json.loads((FOLDER.parent / "gpu" / "results.json").read_text(encoding="utf-8"))
    name = results["gpu"]["target"]
    checks = {check["check"]: check["figures"] for check in results["checks"]}
    measured = {row["kernel"]: row["ms"] for row in checks["predictor"]["rows"]}
    found = []
    for number, one in enumerate(products(_target(name)), 1001):
        kind = f"gemm {one.precision}" if one.kind == "gemm" else str(one.kind)
        found.append(
            Row(number, one.name, one.precision, 1, name, "latency_ms", measured[one.name],
                KERNEL, "optkit#experiments/gpu/results.json", {"kind": kind})
        )  # fmt: skip
        _ACCOUNTS[number] = Account((Term((work_of(one),)),), 1.0)
    return found


def _category(row: dict[str, Any]) -> str:
    if row["metric"] == "decode_tokens/s":
        return "decode"
    if row["metric"] == "ttft_ms":
        return "prefill"
    for name, category in (("resnet", "convolution"), ("mobilenet", "convolution"),
                           ("yolo", "convolution"), ("bert", "encoder"), ("swin", "encoder"),
                           ("sdxl", "diffusion")):  # fmt: skip
        if row["model"].startswith(name):
            return category
    return "serving"


@dataclass(frozen=True)
class Term:
    """Work done `times` over, within `watts` where the measurement had a power limit."""

    works: tuple[Work, ...]
    times: float = 1.0
    watts: float | None = None


@dataclass(frozen=True)
class Account:
    """What a row measured: its work, the sequence steps that cost the host time, and how many units
    of its metric come out of it."""

    terms: tuple[Term, ...]
    units: float
    sequence_steps: float = 0.0


def taken(row: Row) -> float:
    """Seconds that the row's account took, as measured."""
    return account_of(row).units / row.value if row.faster_is_more else row.value / 1e3


def predicted(row: Row, eff: Efficiencies) -> float:
    """The row's metric, by the model."""
    return of_account(row, account_of(row), eff)


def of_account(row: Row, account: Account, eff: Efficiencies) -> float:
    """The row's metric, by the model, if that is the work that the row measured."""
    taken = sum(
        term.times * seconds(term.works, row.target, eff, watts=term.watts).total
        for term in account.terms
    )
    return _in_metric(row, taken + account.sequence_steps * eff.sequence_us * 1e-6, account.units)


def bound(row: Row) -> float:
    """The row's metric, by the naive roofline: all operations at the peak or all bytes at the full
    bandwidth, whichever takes longer."""
    account = account_of(row)
    taken = 0.0
    for term in account.terms:
        compute = sum(w.times * w.operations / (row.target.peak(w.dtype) or 1) for w in term.works)
        moved = sum(w.times * (w.weight_bytes + w.moved + w.streamed) for w in term.works)
        taken += term.times * max(compute, moved / (row.target.bandwidth or 1))
    return _in_metric(row, taken, account.units)


def _in_metric(row: Row, taken: float, units: float) -> float:
    return units / taken if row.faster_is_more else taken * 1e3


def compiled() -> dict[int, Account]:
    """Row number → the work of the layers of a compiled engine, where compile_layers.py could make
    one."""
    found = {}
    for engine in json.loads((FOLDER / "compiled.json").read_text(encoding="utf-8")):
        works = tuple(Work(**work) for work in engine["works"])
        account = Account((Term(works),), float(engine["batch"]))
        found |= dict.fromkeys(engine["rows"], account)
    return found


_ACCOUNTS: dict[int, Account] = {}


def account_of(row: Row) -> Account:
    """Work and units of a row; the same for every set of efficiencies."""
    if row.number not in _ACCOUNTS:
        makers = {"decode": _decode, "serving": _serving}
        _ACCOUNTS[row.number] = makers.get(row.category, _once)(row)
    return _ACCOUNTS[row.number]


def _once(row: Row) -> Account:
    batch = 1.0 if row.batch is None else float(row.batch)
    if row.category == "convolution":
        works = _convolutions(row, batch)
    elif row.model.startswith("swin"):
        works = w.swin_base(batch)
    elif row.category == "encoder":
        size, *words = row.model.removeprefix("bert-").split()
        tokens = float(words[0]) if words[0].isdigit() else w.assumed("squad_tokens")
        # "precision fp16, use_fp8": the products alone
        carrier = "fp16" if row.precision == "fp8" else row.precision
        works = w.bert(size, batch, tokens, row.precision, carrier)
    elif row.category == "diffusion":
        # FP8 convolutions came with TensorRT 10.2 (TensorRT #3987); these rows are TensorRT 9.3.
        works = w.sdxl(30, row.precision, "int8" if row.precision == "int8" else "fp16")
    else:
        works = prefill(w.LLAMA_7B, _numbers(row), row.data["isl"])
    return Account((Term(tuple(works)),), batch)


def _convolutions(row: Row, batch: float) -> list[Work]:
    if row.model.startswith("mobilenet"):
        return w.mobilenet_v1(batch) if "v1" in row.model else w.mobilenet_v2(batch)
    return (w.yolov8n if row.model.startswith("yolo") else w.resnet50)(batch, row.precision)


def _numbers(row: Row) -> DecoderPrecision:
    """TensorRT-LLM: FP8 engines keep their cache in FP8."""
    if row.precision.startswith("fp8"):
        return DecoderPrecision(8, "fp8", kv_bits=8)
    return DecoderPrecision(16, "fp16")


_STORED = {
    "fp16": DecoderPrecision(16, "fp16"),
    "bf16": DecoderPrecision(16, "bf16", "bf16"),
    "int8_woq": DecoderPrecision(8, "bf16", "bf16", weight_only=True),
    # groups of 32 with a scale and a zero point of 16 bits each; gpt-fast leaves the rest in BF16
    "int4_woq_g32": DecoderPrecision(5, "bf16", "bf16", weight_only=True, vocabulary_bits=5),
    "q4_0": DecoderPrecision(
        4.5, "fp16", weight_only=True, vocabulary_bits=6.5625
    ),  # ggml: Q6_K output
}


def _decode(row: Row) -> Account:
    shape = w.LLAMA_70B if "70b" in row.model else w.LLAMA_7B
    runtime = "llama_cpp" if "llama.cpp" in row.source else "gpt_fast"
    works = step(shape, _STORED[row.precision], w.assumed(f"{runtime}_context"), 1,
                 kernels=w.assumed(f"{runtime}_kernels"))  # fmt: skip
    return Account((Term(tuple(works), watts=330.0 if "330 W" in row.source else None),), 1.0)


_SERVED: dict[str, tuple[DecoderShape, int]] = {
    "llama2-70b openorca": (w.LLAMA_70B, 2),
    "gpt-j-6b cnn-dm": (w.GPT_J_6B, 1),
    "llama-7b": (w.LLAMA_7B, 1),
    "llama-3.1-8b": (w.LLAMA_31_8B, 1),
    "llama-3.3-70b": (w.LLAMA_33_70B, 2),
}


def _serving(row: Row) -> Account:
    """Output tokens per second and GPU of a full batch: prefills and decode steps take turns."""
    shape, devices = _SERVED[row.model]
    numbers = _numbers(row)
    beams = 1
    if "openorca" in row.model:
        read, written = w.assumed("openorca_in"), w.assumed("openorca_out")
    elif "cnn" in row.model:
        read, written = w.assumed("cnn_in"), w.assumed("cnn_out")
        beams = int(w.assumed("cnn_beams"))
    else:
        read, written = float(row.data["isl"]), float(row.data["osl"])
    context = read + written / 2
    batch = _fits(row, shape, numbers, devices, context) if row.batch == "max" else float(row.batch)
    start = prefill(shape, numbers, read, batch, devices=devices)
    decode = step(shape, numbers, context, batch, devices=devices, beams=beams, shared=read)
    return Account(
        (Term(tuple(start)), Term(tuple(decode), written)),
        batch * written / devices, written * batch * beams,
    )  # fmt: skip


def _fits(
    row: Row, shape: DecoderShape, numbers: DecoderPrecision, devices: int, context: float
) -> float:
    weights = shape.parameters * numbers.weight_bits / 8
    free = devices * float(row.target.memory_bytes or 0) - weights
    return w.assumed("in_flight_share") * free / (shape.kv_bytes(numbers.kv_bits) * context)
