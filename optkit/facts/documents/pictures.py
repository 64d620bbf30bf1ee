"""The pictures on which a model loses most beside its baseline: a part of the report."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import AtLeastOne, Count

Point = tuple[Number, Number]

_Embedded = Annotated[str, Field(pattern="^data:image/(png|jpeg);base64,[A-Za-z0-9+/]+=*$")]


class AnnotatedObject(Record):
    """An object that is annotated, and which of the two models found it."""

    kind: Annotated[Count, said("The number of its class.")]
    outline: Annotated[Rows[Point], said("Corners, in pixels of the drawing.")]
    points: Annotated[Rows[Point], said("Visible keypoints, in pixels of the drawing.")]
    baseline: bool
    """Whether the baseline found it."""
    candidate: bool
    """Whether the candidate found it."""


class FoundObject(Record):
    """An object that a model found."""

    kind: Annotated[Count, said("The number of its class.")]
    score: Number
    outline: Annotated[Rows[Point], said("Corners, in pixels of the drawing.")]
    points: Annotated[Rows[Point], said("Keypoints, in pixels of the drawing.")]
    right: Annotated[bool, said("Whether it matches an annotated object of its class.")]


class Drawing(Record):
    """A picture as the model's input had it, made smaller where it is large."""

    width: AtLeastOne
    height: AtLeastOne
    picture: Annotated[
        _Embedded | None, said("A JPEG; null if no input of the model is a picture.")
    ] = None
    mask: Annotated[
        _Embedded | None,
        said(
            "A PNG of the pixels whose class changed from right to wrong, or from wrong to right, "
            "and of those that both models have wrong; null for objects."
        ),
    ] = None
    annotated: Rows[AnnotatedObject]
    baseline: Rows[FoundObject]
    candidate: Rows[FoundObject]


class WorstPicture(Record):
    """A picture with the metric of both models on it alone."""

    sample: Annotated[Count, said("Its number in the order of the task's samples, from 0 on.")]
    baseline: Number
    """The metric of the baseline."""
    candidate: Number
    """The metric of the candidate."""
    lost: Annotated[Count, said("Objects or pixels that only the baseline has right.")]
    gained: Annotated[Count, said("Objects or pixels that only the candidate has right.")]
    drawing: Annotated[
        Drawing | None, said("Null if the build was not asked to embed pictures.")
    ] = None


class WorstPictures(Record):
    """The pictures whose own metric drops most from the baseline to the candidate."""

    metric: str
    evidence: Evidence
    unit: Annotated[
        Literal["objects", "pixels"] | None, said("What is lost and gained; null without pictures.")
    ] = None
    confidence: Annotated[
        Number | None, said("The least score of an object that counts as found; null for pixels.")
    ] = None
    samples: Annotated[Count, said("The number of pictures that were scored.")]
    worse: Annotated[Count, said("On how many of them the candidate is worse.")]
    better: Annotated[Count, said("On how many of them it is better.")]
    embedded: Annotated[bool, said("Whether the build was asked to embed the pictures.")]
    pictures: Annotated[Rows[WorstPicture], said("The worst first.")]
