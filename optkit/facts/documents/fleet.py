"""One model for several targets and precisions: fleet.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.device_facts import Price
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.record import Digest, Record, Rows, said
from optkit.facts.documents.result import Result
from optkit.facts.listed_steps import StepTaken
from optkit.facts.plain_record import PlainRecord, absent

FLEET: Final = "optkit.fleet/v1"


class BuiltArtifact(Record):
    """The folder of an artifact, and its digest."""

    path: str
    digest: Digest


class PricedTarget(Record):
    """The title of a target, and its price."""

    title: str
    price: Price | None = None


@dataclass(frozen=True)
class OnePair(PlainRecord):
    """Of one target and precision."""

    pair: str


@dataclass(frozen=True)
class PairStep(StepTaken, OnePair):  # in this order `pair` comes first
    """One step of one pair."""


class Fleet(Record):
    """The builds of one model for several targets and precisions."""

    schema_: Literal["optkit.fleet/v1"] = Field(alias="schema")
    model: str
    digest: Annotated[Digest, said("The digest of the digests of the artifacts.")]
    results: Annotated[Rows[Result], said("One per pair, in the order of the request.")]
    artifacts: Annotated[dict[str, BuiltArtifact], said('What was built, by "target precision".')]
    targets: Annotated[dict[str, PricedTarget], said("Title and price by target.")]
    steps: Annotated[
        Rows[PairStep],
        said("Every step of every pair, in order. One pair's key is a hit for the next."),
    ]
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
    versions: dict[str, str]
