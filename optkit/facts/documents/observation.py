"""What limits a program: the object of `optkit monitor`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.plain_record import AtLeastOne, Count

MONITOR: Final = "optkit.monitor/v1"

Unit = Literal["s", "share", "cores", "B/s", "B", "count"]


class ObservedFigure(Record):
    """A figure of the whole run."""

    value: Annotated[Number | None, said("Null if it is unknown on this machine.")] = None
    unit: Unit


class JudgedFigure(Record):
    """A figure beside the threshold of a rule."""

    figure: str
    value: Number | None = None
    unit: Unit
    sign: Literal[">=", "<"]
    threshold: Number


class ObservedLimit(Record):
    """A rule that holds, and the figures because of which it holds."""

    verdict: str
    because: Rows[JudgedFigure]
    advice: str
    verified: Annotated[bool, said("Tests confirm the rule on real programs.")]


class OpenVerdicts(Record):
    """Verdicts that may also be right, because the figures `untold` are unknown."""

    verdicts: Rows[str]
    untold: Rows[str]


class Observation(Record):
    """A program that was observed."""

    schema_: Literal["optkit.monitor/v1"] = Field(alias="schema")
    status: Literal["ok"]
    evidence: Literal["measured"]
    command: Annotated[Rows[str] | None, said("Null for a process that ran already.")] = None
    pid: int
    exit_code: Annotated[int | None, said("Null for a process that ran already.")] = None
    cores_usable: AtLeastOne
    samples: Count
    figures: dict[str, ObservedFigure]
    gpus: Annotated[Rows[str], said("Their names.")]
    no_gpu: Annotated[str | None, said("Why there are no figures of a GPU.")] = None
    diagnosis: ObservedLimit
    warnings: Rows[ObservedLimit]
    declined: OpenVerdicts
