"""One model for several targets and precisions: fleet.json."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.documents.prices import DatedPrice
from optkit.documents.recommendation import Recommendation
from optkit.documents.record import Digest, NotNegative, Record, Rows, absent, said
from optkit.documents.result import Result

FLEET: Final = "optkit.fleet/v1"


class BuiltArtifact(Record):
    """The folder of an artifact, and its digest."""

    path: str
    digest: Digest


class PricedTarget(Record):
    """The title of a target, and its price."""

    title: str
    price: DatedPrice | None = None


class PairStep(Record):
    """One step of one pair."""

    pair: str
    step: str
    label: str
    key: str
    hit: bool
    seconds: NotNegative


class Fleet(Record):
    """One model for several targets and precisions: fleet.json."""

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
