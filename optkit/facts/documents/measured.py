"""Figures with their evidence, in results, reports, plans and searches."""

from __future__ import annotations

from typing import Annotated

from optkit.facts.documents.record import Record, Rows, said
from optkit.facts.measurement import Outcome
from optkit.facts.plain_record import Count


class SampleSet(Record):
    """The samples of a calibration or an evaluation."""

    samples: Count
    source: str | None = None


class BuildFacts(Record):
    """The size of the engine of a build, its data, and when and where its latency was measured."""

    engine_bytes: Count | None = None
    calibration: SampleSet | None = None
    evaluation: SampleSet | None = None
    measured_at: Annotated[str | None, said("In UTC; null if not measured.")] = None
    machine: str | None = None
    from_store: bool | None = None


class GateVerdict(Record):
    """All gates together."""

    verdict: Outcome
    reasons: Rows[str]
