"""How many devices serve a load within limits: what `optkit plan --serve --json` prints. All of it
is predicted."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.device_facts import Price
from optkit.facts.documents.plan import Bound, PlannedDecoder, Predicted
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.record import Interval, NotNegative, Number, Record, Rows, Share, said
from optkit.facts.documents.result import StepFailure

SERVING: Final = "optkit.serving/v1"

DecidingBound = Bound | Literal["cache", "queue"]


class ServedTraffic(Record):
    """The requests."""

    source: Annotated[
        Literal["poisson", "trace"], said("poisson: at random moments; trace: of a file.")
    ]
    requests_per_s: Annotated[Number, said("On average.")]
    prompt: Annotated[str, said("Tokens that are read.")]
    output: Annotated[str, said("Tokens that are written.")]
    prompt_mean: Annotated[Number, said("Mean tokens of a prompt.")]
    output_mean: Annotated[Number, said("Mean tokens of an answer.")]
    shared: Annotated[Share, said("Of each prompt, what it has in common with the others.")]
    seed: Annotated[int, said("Of the random requests.")]


class ServingLimits(Record):
    """Of the requests, `percentile` percent must hold them; null: no limit."""

    ttft_ms: Annotated[Number | None, said("Time to the first token.")] = None
    tpot_ms: Annotated[Number | None, said("Time per output token after the first.")] = None
    percentile: Annotated[Number, said("Percent of the requests.")]


class ServingSetup(Record):
    """How each copy of the model serves."""

    batching: Annotated[Literal["static", "dynamic", "continuous"], said("How batches are made.")]
    chunk_tokens: Annotated[int | None, said("Per pass; null: prompts are read whole.")] = None
    max_batch: Annotated[int, said("Sequences of a copy at once.")]
    delay_ms: Annotated[Number | None, said("That dynamic batching waits for a full batch.")] = None
    block_tokens: Annotated[int, said("Of the paged cache.")]
    split: Annotated[bool, said("Prompts are read on other devices than answers are written.")]
    draft_length: Annotated[int | None, said("Drafted tokens per pass; null: no drafts.")] = None
    acceptance: Annotated[Share | None, said("Of drafted tokens.")] = None
    draft_cost: Annotated[Share | None, said("Of a drafted token, in passes of the model.")] = None
    tokens_per_pass: Annotated[Number, said("That a sequence writes, as expected.")]


class TimePercentiles(Record):
    """Milliseconds in the steady state. `interval`: of the percentile of the limits, 95 %, by batch
    means: what the length of the simulation leaves open. `band`: the same percentile if all passes
    were as much faster or slower as predictions of plan were off; null where the queue of a slower
    one grows without end."""

    mean: Annotated[NotNegative, said("ms")]
    p50: Annotated[NotNegative, said("ms")]
    p95: Annotated[NotNegative, said("ms")]
    p99: Annotated[NotNegative, said("ms")]
    interval: Annotated[Interval, said("ms, of the percentile of the limits.")]
    band: Annotated[
        tuple[NotNegative, NotNegative | None], said("ms, with faster and with slower passes.")
    ]


class SimulatedTime(Record):
    """How far the simulation reaches."""

    requests: Annotated[int, said("That were simulated.")]
    counted: Annotated[int, said("Without the first fifth and the last tenth.")]
    seconds: NotNegative
    """In which the counted requests arrived."""
    copies: Annotated[int, said("That were simulated, with their share of the requests.")]


class ServingRow(Record):
    """The fewest devices of one kind, in one precision."""

    target: str
    precision: str
    status: Literal["ok", "impossible"]
    reason: str | None = None
    evidence: Predicted
    devices: int | None = None
    devices_band: Annotated[
        tuple[int, int | None] | None,
        said("If all passes were faster or slower; null: no number would do."),
    ] = None
    copies: Annotated[int | None, said("Data parallel; with split, those that write.")] = None
    readers: Annotated[int | None, said("Copies that read prompts; 0 without split.")] = None
    tensor: Annotated[int | None, said("Devices of a copy that share each layer.")] = None
    pipeline: Annotated[int | None, said("Stages of layers of a copy.")] = None
    usd_per_hour: Annotated[Number | None, said("Of all devices.")] = None
    usd_per_million: Annotated[Number | None, said("Of written tokens.")] = None
    price: Price | None = None
    ttft_ms: Annotated[TimePercentiles | None, said("To the first token.")] = None
    tpot_ms: Annotated[TimePercentiles | None, said("Per token after the first.")] = None
    e2e_ms: Annotated[TimePercentiles | None, said("From arrival to the last token.")] = None
    requests_per_s: Annotated[Number | None, said("Served.")] = None
    tokens_per_s: Annotated[Number | None, said("Written by all copies.")] = None
    utilisation: Annotated[Share | None, said("Of the time, in which the copies compute.")] = None
    mean_batch: Annotated[Number | None, said("Sequences per pass that writes.")] = None
    cache_tokens: Annotated[int | None, said("That fit into one copy.")] = None
    cache_mean: Annotated[Share | None, said("Of the cache that is used, on average.")] = None
    cache_max: Annotated[Share | None, said("The most of it that was used.")] = None
    preemptions: Annotated[int | None, said("Sequences that lost their cache.")] = None
    bound: Annotated[DecidingBound | None, said("What stands against a higher load.")] = None
    simulated: SimulatedTime | None = None
    notes: Rows[str]
    unverified: Annotated[Rows[str], said("Figures of the device that nobody read in a source.")]


class LoadPoint(Record):
    """The devices of the recommendation at another load. Null: the queue grows without end."""

    requests_per_s: Annotated[Number, said("The load.")]
    ttft_ms: Annotated[Number | None, said("At the percentile of the limits.")] = None
    tpot_ms: Annotated[Number | None, said("At the percentile of the limits.")] = None


class ServingPlan(Record):
    """How many devices serve a load within limits."""

    schema_: Literal["optkit.serving/v1"] = Field(alias="schema")
    status: Annotated[Literal["ok", "impossible"], said("impossible: of every row.")]
    error: StepFailure | None = None
    model: PlannedDecoder
    traffic: ServedTraffic
    limits: ServingLimits
    setup: ServingSetup
    results: Rows[ServingRow]
    loads: Annotated[Rows[LoadPoint], said("Of the first recommended row.")]
    recommendation: Recommendation | None = None
    notes: Annotated[Rows[str], said("What the figures rest on, and what the host needs.")]
