"""`plan`: what a model would take on targets before anything is built, all of it predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from optkit.api import jobs, plan_subject
from optkit.api.in_memory import Batch
from optkit.api.jobs import RecipeLike
from optkit.api.plan_subject import Subject
from optkit.decoder import DecoderSizes
from optkit.devices import Target
from optkit.devices import target as find_target
from optkit.errors import (
    Impossible,
    OptkitError,
    ToolchainMissing,
    UsageError,
    from_json,
    unknown_name,
)
from optkit.precisions import PRECISIONS, precision
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from torch.nn import Module

SCHEMA = "optkit.plan/v1"

# What is planned where no precision is named, as far as the target has it.
_USUAL = ("fp16", "int8", "fp8", "int4")


@dataclass(frozen=True)
class _Question:
    """What a plan is asked, beside the model."""

    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    batches: tuple[int, ...]
    prompt: int
    new_tokens: int
    latency_ms: float | None
    throughput: float | None
    prices: Path | None
    training: tuple[str, ...]
    quick: bool


def plan(
    model: Module | Request | str | Path | None = None,
    example_inputs: Batch | None = None,
    *,
    target: str | Iterable[str],
    precision: str | Iterable[str] = (),
    batches: Iterable[int] = (),
    decoder: DecoderSizes | None = None,
    prompt: int = 1024,
    new_tokens: int = 256,
    latency_ms: float | None = None,
    throughput: float | None = None,
    prices: str | Path | None = None,
    training: Iterable[str] = (),
    quick: bool = False,
    partial: bool = False,
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> dict[str, Any]:
    """Predict latency, throughput, memory and cost of MODEL on each target and precision.

    model, example_inputs, recipe: as for `build`.
    target, precision: one name or several; no precision: fp16, int8, fp8, int4 where the target
        has them.
    batches: batch sizes beside 1, 2, 4 … 256.
    decoder: sizes of a decoder instead of a model.
    prompt, new_tokens: of a decoder, tokens that it reads and writes per sequence.
    latency_ms: a limit for one call (of a decoder: for one token).
    throughput: samples (of a decoder: written tokens) per second that are needed.
    prices: a YAML file with prices per hour (docs/plan.md).
    training: memory of training too: "full", "lora", "qlora".
    quick: training by the rule of thumb, weights times seven.
    partial: a precision that was named and that a target cannot do is a row without figures, and
        the plan's `error`, instead of being raised.

    Returns an optkit.plan/v1 object. Raises UsageError, UnknownName, Impossible, and whatever
    exporting a model raises.
    """
    question = _Question(
        _names(target), _names(precision), tuple(batches), prompt, new_tokens, latency_ms,
        throughput, None if prices is None else Path(prices), tuple(training), quick,
    )  # fmt: skip
    if decoder is None:
        runner = workspace.runner()
        job = jobs.job_of(
            model, example_inputs, jobs.pair("cpu", "fp32"), recipe=recipe, calibration=None,
            name=None, runner=runner,
        )  # fmt: skip
        subject = plan_subject.exported(job, runner, prompt, new_tokens)
    elif model is None:
        subject = plan_subject.described(decoder, prompt, new_tokens)
    else:
        raise UsageError("a model and a description of one exclude each other", where="decoder")
    found = _plan(subject, question)
    if found["error"] is not None and not partial:
        raise from_json(found["error"])
    return found


def failed(error: OptkitError) -> dict[str, Any]:
    """The object of a plan that never came to a figure."""
    return {
        "schema": SCHEMA, "status": "error", "error": error.to_json(), "model": None,
        "asked": None, "results": [], "cheapest": None, "advice": [], "fit": None,
    }  # fmt: skip


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _plan(subject: Subject, question: _Question) -> dict[str, Any]:
    from optkit.prediction import advice, cost, memory
    from optkit.prediction.fitted import fitted

    _check(subject, question)
    overrides = {} if question.prices is None else cost.read_prices(question.prices)
    results, refused = [], None
    devices = {found.name: found for found in map(find_target, question.targets)}
    for device in devices.values():
        for name in _precisions(device, question):
            try:
                results.append(_row(subject, device, name, question, overrides))
            except (Impossible, ToolchainMissing) as error:
                refused = refused or error
                results.append(_refused(device, name, error))
    fit = fitted()
    return {
        "schema": SCHEMA,
        "status": "ok" if refused is None else "impossible",
        "error": None if refused is None else refused.to_json(),
        "model": {
            "name": subject.name, **subject.facts, "assumed": list(subject.assumed),
            "quick_training": memory.quick(2 * subject.facts["parameters"]).to_json()
            if question.quick else None,
        },
        "asked": {
            "latency_ms": question.latency_ms, "throughput": question.throughput,
            "batches": list(question.batches),
        },
        "results": results,
        "cheapest": _cheapest(results, question),
        "advice": advice.advise(results, limit_ms=question.latency_ms),
        "fit": {"rows": fit.rows, "half_widths": dict(fit.widths)},
    }  # fmt: skip


def _check(subject: Subject, question: _Question) -> None:
    """Raises UsageError for what no plan can start from."""
    from optkit.prediction import memory

    if not question.targets:
        raise UsageError("no target", where="--target", hint="see `optkit targets`")
    numbers = {
        "--batch": question.batches,
        "--prompt": (question.prompt,),
        "--new": (question.new_tokens,),
    }
    for option, values in numbers.items():
        if any(value < 1 for value in values):
            raise UsageError("it must be at least 1", where=option)
    for option, value in (
        ("--latency", question.latency_ms),
        ("--throughput", question.throughput),
    ):
        if value is not None and not 0 < value < inf:
            raise UsageError("it must be a number above 0", where=option)
    for method in question.training:
        if method not in get_args(memory.Method):
            raise unknown_name("training method", method, get_args(memory.Method))
    fixed = subject.batches if len(subject.batches) == 1 else None
    other = [batch for batch in question.batches if fixed and batch not in fixed]
    if fixed and other:
        raise UsageError(
            f"the model's batch is fixed at {fixed[0]}", where="--batch",
            hint="export it with a batch axis",
        )  # fmt: skip


def _precisions(device: Target, question: _Question) -> Sequence[str]:
    if question.precisions:
        return [precision(name).name for name in dict.fromkeys(question.precisions)]
    return [
        name for name in _USUAL if all(device.supports(need) for need in PRECISIONS[name].needs)
    ] or ["fp16"]  # fmt: skip


def _row(
    subject: Subject, device: Target, name: str, question: _Question, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    from optkit.prediction import cost, plans

    if "gpu" not in PRECISIONS[name].runs_on:
        raise Impossible(f"{name} runs on ONNX Runtime's CPU kernels only", where=device.name)
    for need in PRECISIONS[name].needs:
        reason = device.why_not(need, of=name)
        if reason is not None:
            raise Impossible(reason, where=device.name, hint=f"see `optkit targets {device.name}`")
    if device.vendor != "nvidia":
        raise Impossible(
            "predictions were fitted to NVIDIA GPUs alone", where=device.name,
            hint="`optkit bench --target cpu` measures this machine",
        )  # fmt: skip
    batches = tuple(sorted({*subject.batches, *question.batches}))
    return plans.row(
        subject.model,
        device,
        name,
        batches,
        cost.price_of(device, overrides),
        question.training,  # type: ignore[arg-type]  # checked above
    )


def _refused(device: Target, name: str, error: OptkitError) -> dict[str, Any]:
    """A row without figures; the same fields as any."""
    return {
        "target": device.name, "precision": name, "status": "impossible", "reason": error.message,
        "devices": None, "latency": [], "memory": None, "largest_batch": None,
        "largest_context": None, "kv_bytes_per_token": None, "decode": None, "notes": [],
        "price": None, "unverified": [], "measured_generation": None, "training": [],
    }  # fmt: skip


def _cheapest(results: Sequence[Mapping[str, Any]], question: _Question) -> dict[str, Any] | None:
    """The pair and batch of the lowest price that meets the limits: per hour for a throughput that
    is asked, else per million. `certain`: the whole interval meets the latency. None: nothing that
    has a price meets them."""
    options = []
    for row in results:
        for one in row["latency"]:
            late = question.latency_ms is not None and one["p50_ms"] > question.latency_ms
            if late or row["price"] is None:
                continue
            copies = (
                1 if question.throughput is None else ceil(question.throughput / one["throughput"])
            )
            devices = copies * row["devices"]
            hourly = devices * row["price"]["usd_per_hour"]
            options.append(
                {
                    "target": row["target"], "precision": row["precision"], "batch": one["batch"],
                    "devices": devices, "usd_per_hour": hourly,
                    "usd_per_million": one["usd_per_million"],
                    "kwh_per_million": one["kwh_per_million"], "p50_ms": one["p50_ms"],
                    "band": one["band"], "throughput": one["throughput"] * copies,
                    "price": row["price"], "evidence": "predicted",
                    "certain": question.latency_ms is None or one["band"][1] <= question.latency_ms,
                }
            )  # fmt: skip
    key = "usd_per_million" if question.throughput is None else "usd_per_hour"
    return min(options, key=lambda one: (one[key], one["usd_per_million"]), default=None)
