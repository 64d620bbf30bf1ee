"""What a model would take on targets: what `optkit plan --json` prints. All of it is predicted."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.device_facts import Price
from optkit.facts.documents.prices import Purchase
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.record import Interval, Number, Object, Record, Rows, said
from optkit.facts.documents.result import StepFailure
from optkit.facts.plain_record import absent

PLAN: Final = "optkit.plan/v1"

Bound = Literal["compute", "memory", "unpack", "launch", "link", "host", "pcie"]
Predicted = Literal["predicted"]
Method = Literal["full", "lora", "qlora"]


class TrainingBytes(Record):
    """Bytes of training; null: unknown for this model and method."""

    weights: int | None = None
    gradients: int | None = None
    optimizer: int | None = None
    activations: int | None = None
    temporary: int | None = None
    total: int


class TrainingMemory(TrainingBytes):
    """Bytes of training, and how many devices hold them."""

    devices: int | None = None


class _PlannedModel(Record):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    name: str


class PlannedGraph(_PlannedModel):
    """A model that answers in one run. `macs`: for one sample; `axes`: sizes but the batch."""

    kind: Literal["graph"]
    parameters: int
    macs: int
    axes: dict[str, int]
    assumed: Rows[str]
    quick_training: TrainingBytes | None = None


class PlannedDecoder(_PlannedModel):
    """A decoder, and what is asked of it."""

    kind: Literal["decoder"]
    parameters: int
    shape: Object
    prompt_tokens: int
    new_tokens: int
    kv_bytes_per_token_fp16: int
    assumed: Rows[str]
    quick_training: TrainingBytes | None = None


class Asked(Record):
    """The limits, and the batches that were named. `load_per_s` and `load_share`: the average load,
    as one of the two."""

    latency_ms: Number | None = None
    throughput: Number | None = None
    batches: Rows[int]
    load_per_s: Annotated[Number | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    load_share: Annotated[Number | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class PlannedLoad(Record):
    """What the throughput and the load that are asked for take at this batch."""

    devices: Annotated[int, said("Of all copies of the model.")]
    throughput: Annotated[Number, said("What is served per second, on average.")]
    utilisation: Annotated[Number, said("Share of the time in which the devices compute.")]
    usd_per_hour: Number | None = None
    usd_per_million: Annotated[Number | None, said("Of what is served.")] = None
    usd_band: Annotated[Interval | None, said("As many devices as the throughput's ends take.")] = (
        None
    )
    break_even_months: Annotated[
        Number | None,
        said("Of bought devices, against devices that are rented only while they compute."),
    ] = None


class PlannedFeed(Record):
    """What the host must deliver so that the devices of one copy never wait."""

    evidence: Predicted
    samples_per_s: Annotated[Number, said("Of a decoder: sequences.")]
    to_device_mb_per_s: Annotated[Number, said("Inputs over the link, in 10^6 bytes/s.")]
    link_mb_per_s: Annotated[Number | None, said("Of all devices; null: no link or unknown.")] = (
        None
    )
    storage_mb_per_s: Annotated[Number | None, said("Null: the stored size is not known.")] = None
    core_ms_per_sample: Annotated[Number, said("The most that a host core may take.")]


class PlannedLatency(Record):
    """At one batch size."""

    batch: int
    evidence: Predicted
    p50_ms: Annotated[Number, said("Of one call; of a decoder, of one token for each sequence.")]
    band: Annotated[Interval, said("ms; held nine of ten measurements of devices left out.")]
    throughput: Annotated[
        Number, said("Samples per second; of a decoder written tokens, prefill included.")
    ]
    throughput_band: Interval
    bounds: Annotated[
        dict[str, Bound], said("Stage (call; or prefill, decode) to its largest part.")
    ]
    parts_ms: Annotated[
        dict[str, Number],
        said("Of a call or of a decode step; computing and moving overlap in part."),
    ]
    first_token_ms: Number | None = None
    first_token_band: Interval | None = None
    mfu: Number | None = None
    mbu: Number | None = None
    operations: Annotated[Number, said("Of one call or step on one device.")]
    bytes: Number
    """That one call or step moves on one device."""
    usd_per_million: Number | None = None
    kwh_per_million: Annotated[Number | None, said("At full board power.")] = None
    spot_usd_per_million: Annotated[
        Number | SkipJsonSchema[None],
        Field(exclude_if=absent),
        said("At the load, if one is asked for."),
    ] = None
    load: Annotated[PlannedLoad | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    feed: Annotated[PlannedFeed | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class InferenceMemory(Record):
    """Bytes at the smallest batch, over all devices."""

    weights: int
    cache: int
    activations: int
    workspace: int
    runtime: int
    total: int


class DecodeBounds(Record):
    """Of decoders: batches from which products are bound by compute, and from which the baseline is
    no slower; null: none."""

    compute_bound_from_batch: int | None = None
    baseline: str
    """The precision of the baseline."""
    stops_paying_at_batch: int | None = None


class PlannedTraining(Record):
    """Memory of training for one sample, by how much is computed again."""

    method: Method
    tokens: int | None = None
    evidence: Predicted
    recompute_none: TrainingMemory
    recompute_selective: TrainingMemory
    recompute_full: TrainingMemory


class PlannedPurchase(Record):
    """A bought device against a rented one that runs around the clock."""

    purchase: Purchase
    watts: Annotated[Number, said("Of the device, all the time.")]
    usd_per_kwh: Number
    break_even_months: Annotated[
        Number | None, said("Null: no price per hour, or power costs as much as rent.")
    ] = None


class PlanRow(Record):
    """One target in one precision."""

    target: str
    precision: str
    status: Literal["ok", "does_not_fit", "impossible"]
    """Whether it is possible, and fits into the memory."""
    reason: str | None = None
    devices: int | None = None
    latency: Rows[PlannedLatency]
    memory: InferenceMemory | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    kv_bytes_per_token: int | None = None
    decode: DecodeBounds | None = None
    notes: Rows[str]
    price: Price | None = None
    unverified: Annotated[Rows[str], said("Figures of the device that nobody read in a source.")]
    measured_generation: bool | None = None
    training: Rows[PlannedTraining]
    spot: Annotated[Price | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    owned: Annotated[PlannedPurchase | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class CheapestChoice(Record):
    """The cheapest devices with a known price that meet what was asked."""

    target: str
    precision: str
    batch: int
    devices: int
    usd_per_hour: Number
    usd_per_million: Number
    kwh_per_million: Number | None = None
    p50_ms: Number
    band: Interval
    throughput: Number
    price: Price | None = None
    evidence: Predicted
    certain: bool
    load: Annotated[PlannedLoad | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class FrontPoint(Record):
    """A call that no other one beats: none is faster and costs no more."""

    target: str
    precision: str
    batch: int
    devices: int
    p50_ms: Number
    band: Interval
    usd_per_million: Annotated[Number, said("At the load, if one is asked for.")]
    usd_band: Interval
    evidence: Predicted


class FitFacts(Record):
    """Measurements behind the predictions, and the factor of each category's interval."""

    rows: int
    half_widths: dict[str, Number]


class Plan(Record):
    """What a model would take on targets. Every figure is predicted; every key is present, what
    does not apply is null."""

    schema_: Literal["optkit.plan/v1"] = Field(alias="schema")
    status: Literal["ok", "impossible", "error"]
    error: StepFailure | None = None
    model: Annotated[PlannedGraph | PlannedDecoder | None, Field(discriminator="kind")] = None
    asked: Asked | None = None
    results: Rows[PlanRow]
    cheapest: Annotated[CheapestChoice | None, said("Null if there is none.")] = None
    front: Annotated[
        Rows[FrontPoint] | SkipJsonSchema[None],
        Field(exclude_if=absent),
        said("Cost over latency of all targets, from the fastest to the cheapest."),
    ] = None
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
    advice: Rows[str]
    fit: FitFacts | None = None
