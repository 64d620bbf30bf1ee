"""The pictures on which the built model loses most, drawn once for each of the two models.

A label stands where it covers no other one; if there is no such place, the object has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from optkit.facts.documents.pictures import (
    AnnotatedObject,
    Drawing,
    FoundObject,
    Point,
    WorstPicture,
    WorstPictures,
)

SIDE = 320.0  # pixels of the longer side, as wide as a phone shows
_HIGH, _DIGIT, _MARGIN = 15.0, 7.2, 6.0  # pixels of a label: height, width of a character, around


@dataclass(frozen=True)
class PictureLine:
    """A closed line, and the points of a pose. `css`: annotated, lost, right or wrong."""

    css: str
    corners: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class PictureLabel:
    """A text on a ground of its own; left, top and width in pixels."""

    x: float
    y: float
    width: float
    text: str


@dataclass(frozen=True)
class PicturePanel:
    """What one model has in a picture. `told`: the same in words."""

    title: str
    told: str
    lines: tuple[PictureLine, ...] = ()
    labels: tuple[PictureLabel, ...] = ()


@dataclass(frozen=True)
class Shown:
    """One picture. `panels`: a panel per model, or one for the change of pixels."""

    sample: int
    width: float
    height: float
    picture: Markup | None
    mask: Markup | None
    panels: tuple[PicturePanel, ...]


def drawings(worst: WorstPictures | None, baseline: str, candidate: str) -> list[Shown]:
    """The embedded pictures, the worst first. `baseline`, `candidate`: the names of the models."""
    pictures = worst.pictures if worst is not None else ()
    return [
        _shown(one, one.drawing, baseline, candidate) for one in pictures if one.drawing is not None
    ]


def _shown(one: WorstPicture, drawing: Drawing, baseline: str, candidate: str) -> Shown:
    scale = SIDE / max(drawing.width, drawing.height)
    size = (drawing.width * scale, drawing.height * scale)
    title = f"Picture {one.sample}"
    if drawing.mask is not None:
        told = f"{title}: {one.lost:,} pixels lost, {one.gained:,} gained"
        panels = [PicturePanel(f"{title}, {baseline} and {candidate}", told)]
    else:
        objects = drawing.annotated
        before = [each.baseline for each in objects]
        after = [each.candidate for each in objects]
        lost = [old and not new for old, new in zip(before, after, strict=True)]
        none = [False] * len(objects)
        panels = [
            _panel(f"{title}, {baseline}", objects, drawing.baseline, before, none, size, scale),
            _panel(f"{title}, {candidate}", objects, drawing.candidate, after, lost, size, scale),
        ]
    return Shown(
        one.sample, *size, _embedded(drawing.picture), _embedded(drawing.mask), tuple(panels)
    )


def _embedded(picture: str | None) -> Markup | None:
    """A data URI, which only has characters without a meaning in HTML: the document allows no
    others."""
    return None if picture is None else Markup(picture)


def _panel(
    title: str,
    annotated: Sequence[AnnotatedObject],
    found: Sequence[FoundObject],
    hits: Sequence[bool],
    lost: Sequence[bool],
    size: tuple[float, float],
    scale: float,
) -> PicturePanel:
    """A model's panel. `hits`, `lost`: which of the annotated objects it found, and which it lost
    beside its baseline."""
    gone = [one for one, is_lost in zip(annotated, lost, strict=True) if is_lost]
    doubtful_first = sorted(found, key=lambda one: (one.right, -one.score))
    wrong = sum(not one.right for one in found)
    told = f"{title}: {sum(hits)} of {len(annotated)} objects found, {wrong} wrong"
    if gone:
        told += f"; lost: class {', '.join(str(one.kind) for one in gone)}"
    lines = [
        _line("lost" if lost[i] else "annotated", one, scale) for i, one in enumerate(annotated)
    ]
    lines += [_line("right" if one.right else "wrong", one, scale) for one in doubtful_first]
    texts = [(f"lost {one.kind}", one.outline) for one in gone]
    texts += [
        (f"{'' if one.right else '! '}{one.kind} {one.score:.2f}", one.outline)
        for one in doubtful_first
    ]
    return PicturePanel(title, told, tuple(lines), tuple(_labels(texts, size, scale)))


def _line(css: str, one: AnnotatedObject | FoundObject, scale: float) -> PictureLine:
    corners = " ".join(f"{x * scale:.1f},{y * scale:.1f}" for x, y in one.outline)
    points = tuple((round(x * scale, 1), round(y * scale, 1)) for x, y in one.points)
    return PictureLine(css, corners, points)


def _labels(
    texts: Sequence[tuple[str, Sequence[Point]]], size: tuple[float, float], scale: float
) -> Iterator[PictureLabel]:
    """A label for each object that has room for one, at a corner of its outline."""
    placed: list[PictureLabel] = []
    for text, outline in texts:
        width = len(text) * _DIGIT + _MARGIN
        free = (
            PictureLabel(x, y, width, text)
            for x, y in _places(outline, width, size, scale)
            if not any(
                abs(x + width / 2 - one.x - one.width / 2) < (width + one.width) / 2
                and abs(y - one.y) < _HIGH
                for one in placed
            )
        )
        label = next(free, None)
        if label is not None:
            placed.append(label)
            yield label


def _places(
    outline: Sequence[Point], width: float, size: tuple[float, float], scale: float
) -> Iterator[tuple[float, float]]:
    """Where a label may begin: above and below the object, then inside, within the picture."""
    left, right = (end(x for x, _ in outline) * scale for end in (min, max))
    top, bottom = (end(y for _, y in outline) * scale for end in (min, max))
    for y in (top - _HIGH, bottom, top, bottom - _HIGH):
        for x in (left, right - width):
            yield (
                round(min(max(x, 0.0), max(size[0] - width, 0.0)), 1),
                round(min(max(y, 0.0), max(size[1] - _HIGH, 0.0)), 1),
            )
