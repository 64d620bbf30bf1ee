"""Generated texts and the speed of the generation: the object of `optkit generate`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import Count, absent

GENERATE: Final = "optkit.generate/v1"


class GeneratedText(Record):
    """The text for one prompt."""

    prompt: Annotated[str, said("The text, or the name of the recording.")]
    prompt_tokens: Annotated[list[int], said("The tokens that were read; none of a recording.")]
    text: Annotated[str, said("What the model wrote.")]
    tokens: Annotated[list[int], said("The generated ones, without one that ended the text.")]
    finish_reason: Annotated[
        Literal["stop", "length"], said("A token that ends a text, or the limit.")
    ]


class TokenCache(Record):
    """The keys and values that a decoder keeps."""

    format: Annotated[str, said("Their dtype, or int4.")]
    token_bytes: Annotated[Count, said("What one token of one text adds.")]
    window: Annotated[
        int | None, said("The tokens to which the cache is cut; null: it keeps all.")
    ] = None


class PhasePace(Record):
    """The speed of a phase."""

    evidence: Evidence
    tokens: Count
    seconds: Number
    tokens_per_second: Annotated[Number | None, said("Null: no token.")] = None


class DraftCounts(Record):
    """What speculative decoding did. A rate is null if there was nothing to divide by."""

    method: Literal["prompt lookup", "draft model"]
    drafted: Annotated[Count, said("Tokens that the target verified.")]
    accepted: Annotated[Count, said("Those of them that became text.")]
    acceptance_rate: Number | None = None
    target_runs: Annotated[Count, said("Runs of the target after the prefill.")]
    tokens_per_run: Number | None = None
    plain_runs: Annotated[Count, said("Runs that verified nothing, as in plain decoding.")]
    plain_tokens_per_second: Number | None = None
    gain: Annotated[Number | None, said("Tokens per second relative to the plain runs.")] = None


class TextGeneration(Record):
    """All texts, and the speed of the phases on this machine."""

    schema_: Literal["optkit.generate/v1"] = Field(alias="schema")
    status: Literal["ok"]
    artifact: str
    adapter: Annotated[str | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    backend: str
    note: Annotated[str | None, said("Why another engine ran than the one of the target.")] = None
    texts: Rows[GeneratedText]
    encode: Annotated[
        PhasePace | SkipJsonSchema[None],
        Field(exclude_if=absent, description="The run of the encoder, if there is one."),
    ] = None
    prefill: PhasePace
    decode: PhasePace
    cache: TokenCache
    speculation: Annotated[DraftCounts | SkipJsonSchema[None], Field(exclude_if=absent)] = None
