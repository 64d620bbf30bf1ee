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
from optkit.documents.plan import (
    PLAN,
    Asked,
    CheapestChoice,
    FitFacts,
    Method,
    Plan,
    PlanFailure,
    PlannedDecoder,
    PlannedGraph,
    PlannedLatency,
    PlanRow,
)
from optkit.documents.prices import DatedPrice
from optkit.errors import Impossible, OptkitError, ToolchainMissing, UsageError, unknown_name
from optkit.precisions import PRECISIONS, Precision, precision
from optkit.prediction import advice, cost, layers, memory, plans
from optkit.prediction.fitted import fitted
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from torch.nn import Module

METHODS: tuple[Method, ...] = get_args(Method)

# Whose GPUs the model of latency describes: bytes from one memory, operations of matrix units.
_VENDORS = ("nvidia", "amd", "apple")

# What is planned where no precision is named, as far as the target has it.
_USUAL = ("fp16", "int8", "fp8", "int4")


@dataclass(frozen=True)
class _Question:
    """What a plan is asked, beside the model."""

    targets: tuple[str, ...]
    precisions: tuple[str, ...]
    batches: tuple[int, ...]
    prompt: int | None
    new_tokens: int | None
    latency_ms: float | None
    throughput: float | None
    prices: Path | None
    training: tuple[Method, ...]
    quick: bool
    partial: bool


def plan(
    model: Module | Request | str | Path | None = None,
    example_inputs: Batch | None = None,
    *,
    target: str | Iterable[str],
    precision: str | Iterable[str] = (),
    batches: Iterable[int] = (),
    decoder: DecoderSizes | None = None,
    prompt: int | None = None,
    new_tokens: int | None = None,
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
    prompt, new_tokens: of a decoder, tokens that it reads and writes per sequence; None: 1,024 and
        256, at most four and one fifth of the positions that the model has.
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
        throughput, None if prices is None else Path(prices), tuple(map(_method, training)), quick,
        partial,
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
        raise UsageError("give either a model or the sizes of a decoder, not both", where="decoder")
    return _plan(subject, question).to_json()


def failed(error: OptkitError) -> Plan:
    """The document of a plan that never came to a figure."""
    failure = PlanFailure.from_object(error)
    return Plan(schema=PLAN, status="error", error=failure, results=(), advice=())


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _method(name: str) -> Method:
    for method in METHODS:
        if name == method:
            return method
    raise unknown_name("training method", name, METHODS)


def _plan(subject: Subject, question: _Question) -> Plan:
    _check(subject, question)
    overrides = {} if question.prices is None else cost.read_prices(question.prices)
    results: list[PlanRow] = []
    refused: OptkitError | None = None
    devices = {device.name: device for device in map(find_target, question.targets)}
    for device in devices.values():
        for scheme in _precisions(device, question):
            try:
                results.append(_row(subject, device, scheme, question, overrides))
            except (Impossible, ToolchainMissing) as error:
                refused = refused or error
                results.append(_refused(device, scheme, error))
    if refused is not None and not question.partial:
        raise refused
    fit = fitted()
    return Plan(
        schema=PLAN,
        status="ok" if refused is None else "impossible",
        error=None if refused is None else PlanFailure.from_object(refused),
        model=_model(subject, question),
        asked=Asked(
            latency_ms=question.latency_ms,
            throughput=question.throughput,
            batches=question.batches,
        ),
        results=tuple(results),
        cheapest=_cheapest(results, question),
        advice=tuple(advice.advise(results, limit_ms=question.latency_ms)),
        fit=FitFacts(rows=fit.rows, half_widths=dict(fit.widths)),
    )


def _model(subject: Subject, question: _Question) -> PlannedGraph | PlannedDecoder:
    if not question.quick:
        return subject.facts
    held = memory.quick(2 * subject.facts.parameters).rounded()
    return subject.facts.model_copy(update={"quick_training": held})


def _check(subject: Subject, question: _Question) -> None:
    """Raises UsageError for what no plan can start from."""
    if not question.targets:
        raise UsageError("no target is given", where="--target", hint="see `optkit targets`")
    numbers = {
        "--batch": question.batches,
        "--prompt": () if question.prompt is None else (question.prompt,),
        "--new": () if question.new_tokens is None else (question.new_tokens,),
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
    fixed = subject.batches if len(subject.batches) == 1 else None
    other = [batch for batch in question.batches if fixed and batch not in fixed]
    if fixed and other:
        raise UsageError(
            f"the model's batch is fixed at {fixed[0]}", where="--batch",
            hint="export it with a batch axis",
        )  # fmt: skip


def _precisions(device: Target, question: _Question) -> Sequence[Precision]:
    if question.precisions:
        return [precision(name) for name in dict.fromkeys(question.precisions)]
    usual = [PRECISIONS[name] for name in _USUAL]
    able = [scheme for scheme in usual if _why_not(device, scheme) is None]
    return able or [PRECISIONS["fp16"]]


def _row(
    subject: Subject,
    device: Target,
    scheme: Precision,
    question: _Question,
    overrides: Mapping[str, DatedPrice],
) -> PlanRow:
    if "gpu" not in scheme.runs_on:
        raise Impossible(f"{scheme} runs on ONNX Runtime's CPU kernels only", where=device.name)
    if device.vendor not in _VENDORS:
        raise Impossible(
            f"latency is predicted for GPUs only; {device.title} is none", where=device.name,
            hint="`optkit bench --target cpu` measures this machine" if device.is_cpu else None,
        )  # fmt: skip
    reason = _why_not(device, scheme)
    if reason is not None:
        raise Impossible(reason, where=device.name, hint=f"see `optkit targets {device.name}`")
    batches = tuple(sorted({*subject.batches, *question.batches}))
    price = cost.price_of(device, overrides)
    return plans.row(subject.model, device, scheme, batches, price, question.training)


def _why_not(device: Target, scheme: Precision) -> str | None:
    """Why the precision cannot be planned there; None if it can. What nothing of optkit compiles
    for is planned from its peaks alone."""
    for need in scheme.needs:
        if device.support(need).answer != "unknown":
            reason = device.why_not(need, of=scheme.name)
            if reason is not None:
                return reason
    for dtype in (layers.multiplies_in(scheme), scheme.carrier):
        if device.peak(dtype) is None:
            return f"{scheme} multiplies in {dtype}, of which {device.title} has no known peak"
    return None


def _refused(device: Target, scheme: Precision, error: OptkitError) -> PlanRow:
    """A row without figures."""
    return PlanRow(
        target=device.name, precision=scheme.name, status="impossible", reason=error.message,
        latency=(), notes=(), unverified=(), training=(),
    )  # fmt: skip


def _cheapest(results: Sequence[PlanRow], question: _Question) -> CheapestChoice | None:
    """The pair and batch of the lowest price that meets the limits: per hour for a throughput that
    is asked, else per million. None: nothing that has a price meets them."""
    options = [
        choice
        for row in results
        for call in row.latency
        if (choice := _choice(row, call, question)) is not None
    ]
    if question.throughput is None:
        return min(options, key=lambda choice: choice.usd_per_million, default=None)
    return min(options, key=lambda choice: (choice.usd_per_hour, choice.usd_per_million),
               default=None)  # fmt: skip


def _choice(row: PlanRow, call: PlannedLatency, question: _Question) -> CheapestChoice | None:
    """A call on as many devices as the throughput needs. `certain`: its whole interval meets the
    latency. None: it is too slow, or without a price."""
    limit = inf if question.latency_ms is None else question.latency_ms
    if row.price is None or row.devices is None or call.usd_per_million is None:
        return None
    if call.p50_ms > limit:
        return None
    copies = 1 if question.throughput is None else ceil(question.throughput / call.throughput)
    devices = copies * row.devices
    return CheapestChoice(
        target=row.target,
        precision=row.precision,
        batch=call.batch,
        devices=devices,
        usd_per_hour=devices * row.price.usd_per_hour,
        usd_per_million=call.usd_per_million,
        kwh_per_million=call.kwh_per_million,
        p50_ms=call.p50_ms,
        band=call.band,
        throughput=call.throughput * copies,
        price=row.price,
        evidence="predicted",
        certain=call.band[1] <= limit,
    )
