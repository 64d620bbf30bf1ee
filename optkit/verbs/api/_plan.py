"""`plan`: what a model would take on targets before anything is built, all of it predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from optkit.craft.prediction import advice, cost, economics, feed, memory, plans
from optkit.craft.prediction.cost import PriceFile
from optkit.craft.prediction.economics import Demand, Terms
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.planned_model import Decoding
from optkit.facts.documents.plan import (
    PLAN,
    Asked,
    FitFacts,
    Method,
    Plan,
    PlannedDecoder,
    PlannedGraph,
    PlanRow,
)
from optkit.facts.documents.result import StepFailure
from optkit.facts.errors import (
    Impossible,
    InputRefused,
    OptkitError,
    ToolchainMissing,
    UsageError,
    unknown_name,
)
from optkit.facts.precisions import Precision
from optkit.facts.request import Request
from optkit.ground.decoder import DecoderSizes
from optkit.ground.devices import Target
from optkit.ground.workspace import Workspace
from optkit.road.jobs import RecipeLike
from optkit.road.jobs.batches import Batch
from optkit.show.report.recommended_choice import of_plan
from optkit.verbs.api import plan_pairs, plan_subject
from optkit.verbs.api.plan_subject import PlanSubject

if TYPE_CHECKING:
    from torch.nn import Module

METHODS: tuple[Method, ...] = get_args(Method)


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
    load: float | str | None
    prices: str | Path | None
    spot: float | None
    electricity: float | None
    stored: float | str | Path | None
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
    load: float | str | None = None,
    prices: str | Path | None = None,
    spot: float | None = None,
    electricity: float | None = None,
    stored: float | str | Path | None = None,
    training: Iterable[str] = (),
    quick: bool = False,
    partial: bool = False,
    recipe: RecipeLike | None = None,
    workspace: Workspace = Workspace(),
) -> Plan:
    """Predict latency, throughput, memory and cost of MODEL on each target and precision.

    model, example_inputs, recipe: as for `build`.
    target, precision: one name or several; "all": every GPU, with those precisions that it has;
        no precision: fp16, int8, fp8, int4 where the target has them.
    batches: batch sizes beside 1, 2, 4 … 256.
    decoder: sizes of a decoder instead of a model.
    prompt, new_tokens: of a decoder, tokens that it reads and writes per sequence; None: 1,024 and
        256, at most four and one fifth of the positions that the model has.
    latency_ms: a limit for one call (of a decoder: for one token).
    throughput: samples (of a decoder: written tokens) per second that are needed.
    load: what is served on average: a number per second, requests ("3req/s": of a decoder as many
        tokens as it writes for one), or a share ("30%") of the throughput that is needed, or of
        what the devices can do if none is.
    prices: a YAML file with prices per hour, spot and purchase prices (docs/how_to/plan.md).
    spot: the discount of spot devices, 0.6 for 60 %.
    electricity: US dollars per kWh, for devices that have a purchase price.
    stored: bytes of a sample in storage, or a folder with a file for each sample.
    training: memory of training too: "full", "lora", "qlora".
    quick: training by the rule of thumb, weights times seven.
    partial: a precision that a target cannot do is a row and the plan's `error`; it is not raised.

    Raises UsageError, UnknownName, Impossible, and the errors of an export.
    """
    question = _Question(
        _names(target), _names(precision), tuple(batches), prompt, new_tokens, latency_ms,
        throughput, load, prices, spot, electricity, stored, tuple(map(_method, training)), quick,
        partial,
    )  # fmt: skip
    if decoder is None:
        subject = plan_subject.load(model, example_inputs, recipe, workspace, prompt, new_tokens)
    elif model is None:
        subject = plan_subject.described(decoder, prompt, new_tokens)
    else:
        raise UsageError("give either a model or the sizes of a decoder, not both", where="decoder")
    return _plan(subject, question)


def failed(error: OptkitError) -> Plan:
    """The document of a plan that never came to a figure."""
    failure = StepFailure.from_object(error)
    return Plan(schema=PLAN, status="error", error=failure, results=(), advice=())


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _method(name: str) -> Method:
    for method in METHODS:
        if name == method:
            return method
    raise unknown_name("training method", name, METHODS)


def _plan(subject: PlanSubject, question: _Question) -> Plan:
    _check(subject, question)
    prices = cost.NO_PRICES if question.prices is None else cost.read_prices(Path(question.prices))
    request = subject.model.new if isinstance(subject.model, Decoding) else 1
    demand = economics.demand(question.load, question.throughput, request)
    stored = _stored(question.stored)
    results: list[PlanRow] = []
    refused: OptkitError | None = None
    for device in plan_pairs.devices(question.targets):
        terms = _terms(device, question, prices, demand)
        for scheme in plan_pairs.precisions(device, question.precisions):
            try:
                results.append(_row(subject, device, scheme, question, terms, stored))
            except (Impossible, ToolchainMissing) as error:
                refused = refused or error
                results.append(_refused(device, scheme, error))
    able = [row for row in results if row.status != "impossible"]
    if able and plan_pairs.EVERY in question.targets:
        results, refused = able, None
    if refused is not None and not question.partial:
        raise refused
    fit = fitted()
    plan = Plan(
        schema=PLAN,
        status="ok" if refused is None else "impossible",
        error=None if refused is None else StepFailure.from_object(refused),
        model=_model(subject, question),
        asked=Asked(
            latency_ms=question.latency_ms,
            throughput=question.throughput,
            batches=question.batches,
            load_per_s=demand.rate,
            load_share=demand.share,
        ),
        results=tuple(results),
        cheapest=economics.cheapest(results, question.latency_ms),
        front=tuple(economics.front(results)),
        advice=tuple(advice.advise(results, limit_ms=question.latency_ms)),
        fit=FitFacts(rows=fit.rows, half_widths=dict(fit.widths)),
    )
    return plan.model_copy(update={"recommendation": of_plan(plan)})


def _terms(device: Target, question: _Question, prices: PriceFile, demand: Demand) -> Terms:
    """How the device is paid for. Raises UsageError for a purchase without a price of power."""
    price = cost.price_of(device, prices.rents)
    spot, purchase = prices.spots.get(device.name), prices.purchases.get(device.name)
    if spot is None and question.spot is not None:
        spot = economics.discounted(price, question.spot)
    if purchase is not None and question.electricity is None:
        raise UsageError(
            f"{device.name} has a purchase price, but the price of its power is not known",
            where="--electricity",
            hint="US dollars per kWh, e.g. --electricity 0.20",
        )
    return Terms(demand, price, spot, purchase, question.electricity)


def _stored(stored: float | str | Path | None) -> float | None:
    """Bytes of one sample: of a folder, the mean of its files. Raises InputRefused for a folder
    without files, or that cannot be read."""
    if not isinstance(stored, str | Path):
        return stored
    try:
        sizes = [path.stat().st_size for path in Path(stored).rglob("*") if path.is_file()]
    except OSError as error:
        raise InputRefused(f"it cannot be read: {error.strerror}", where=str(stored)) from error
    if not sizes:
        raise InputRefused("it has no files to take the size of a sample from", where=str(stored))
    return sum(sizes) / len(sizes)


def _model(subject: PlanSubject, question: _Question) -> PlannedGraph | PlannedDecoder:
    if not question.quick:
        return subject.facts
    held = memory.quick(2 * subject.facts.parameters).rounded()
    return subject.facts.model_copy(update={"quick_training": held})


def _check(subject: PlanSubject, question: _Question) -> None:
    """Raises UsageError for what no plan can start from."""
    if not question.targets:
        raise UsageError("no target is given", where="--target", hint="see `optkit targets`")
    _check_numbers(question)
    fixed = subject.batches if len(subject.batches) == 1 else None
    other = [batch for batch in question.batches if fixed and batch not in fixed]
    if fixed and other:
        raise UsageError(
            f"the model's batch is fixed at {fixed[0]}",
            where="--batch",
            hint="export it with a batch axis",
        )


def _check_numbers(question: _Question) -> None:
    counts = [("--prompt", question.prompt), ("--new", question.new_tokens)]
    for option, count in [*(("--batch", batch) for batch in question.batches), *counts]:
        if count is not None and count < 1:
            raise UsageError("it must be at least 1", where=option)
    for option, value in (
        ("--latency", question.latency_ms),
        ("--throughput", question.throughput),
        ("--electricity", question.electricity),
        ("--stored", None if isinstance(question.stored, str | Path) else question.stored),
    ):
        if value is not None and not 0 < value < inf:
            raise UsageError("it must be a number above 0", where=option)
    if question.spot is not None and not 0 < question.spot < 1:
        raise UsageError(
            "a discount is more than 0 % and less than 100 %", where="--spot", hint="e.g. 60%"
        )


def _row(
    subject: PlanSubject,
    device: Target,
    scheme: Precision,
    question: _Question,
    terms: Terms,
    stored: float | None,
) -> PlanRow:
    plan_pairs.check(device, scheme)
    batches = tuple(sorted({*subject.batches, *question.batches}))
    row = plans.row(subject.model, device, scheme, batches, terms.price, question.training)
    return economics.costed(feed.fed(row, subject.model, device, stored), device, terms)


def _refused(device: Target, scheme: Precision, error: OptkitError) -> PlanRow:
    """A row without figures."""
    return PlanRow(
        target=device.name,
        precision=scheme.name,
        status="impossible",
        reason=error.message,
        latency=(),
        notes=(),
        unverified=(),
        training=(),
    )
