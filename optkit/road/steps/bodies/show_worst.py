from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import load_file

from optkit.craft.benchmarking import accuracy
from optkit.craft.benchmarking.drawings import Objects, Regions, changed
from optkit.facts.documents.pictures import (
    AnnotatedObject,
    Drawing,
    FoundObject,
    Point,
    WorstPicture,
    WorstPictures,
)
from optkit.facts.errors import located
from optkit.ground.data import thumbnails
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress, StepInput
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.evaluate import Drawn, task_of
from optkit.road.steps.bodies.sessions import engine, simulated
from optkit.road.steps.file_names import EACH, SCORES
from optkit.road.steps.show_worst import ShownWorst, ShowWorst

MOST = 6  # pictures
_DIGITS = 9  # of a drop: a smaller one is an error of rounding
# lost, gained, wrong in both: the colours of Okabe and Ito, which colour-blind people tell apart
_MASK = ((213, 94, 0), (86, 180, 233), (240, 228, 66))


def run(step: ShowWorst, out: Path, progress: Progress) -> ShownWorst:
    with located(step.data or str(step.path)):
        worst = _worst(step, progress)
    return ShownWorst(worst=worst)


def _worst(step: ShowWorst, progress: Progress) -> WorstPictures:
    task, drawn = task_of(step)
    assert drawn is not None  # `Evaluated.drawn` says so
    before, after = (
        load_file(score.path / SCORES)[EACH]
        for score in (step.baseline_score, step.candidate_score)
    )
    drops = np.round(after - before if task.lower_is_better else before - after, _DIGITS)
    order = np.argsort(-drops, kind="stable")[:MOST]
    numbers = [int(number) for number in order if drops[number] > 0]
    pairs = dict(zip(sorted(numbers), _pairs(step, task, drawn, numbers, progress), strict=True))
    some = next(iter(pairs.values()), None)
    return WorstPictures(
        metric=task.metric,
        evidence=step.evidence,
        unit=_unit(some[0]) if some else None,
        confidence=some[0].confidence if some and isinstance(some[0], Objects) else None,
        samples=len(drops),
        worse=int((drops > 0).sum()),
        better=int((drops < 0).sum()),
        embedded=step.embedded,
        pictures=tuple(
            _picture(
                number,
                float(before[number]),
                float(after[number]),
                *pairs[number],
                embedded=step.embedded,
            )
            for number in numbers
        ),
    )


def _unit(drawn: Objects | Regions) -> Literal["objects", "pixels"]:
    return "objects" if isinstance(drawn, Objects) else "pixels"


Pair = tuple[Objects | Regions, Objects | Regions, np.ndarray | None]
"""What baseline and candidate have in a picture, and its pixels."""


def _pairs(
    step: ShowWorst,
    task: accuracy.EvaluationTask,
    drawn: Drawn,
    numbers: list[int],
    progress: Progress,
) -> list[Pair]:
    """The samples of these numbers, in the order of the samples."""
    spool = Spool(step.samples.path)
    sides: list[list[Objects | Regions]] = []
    pixels: list[np.ndarray | None] = []
    models = (
        (step.baseline, step.baseline_file, step.baseline_engine, "baseline_engine"),
        (step.graph, step.file, step.engine, "engine"),
    )
    for share, (graph, file, compiled, name) in enumerate(models if numbers else ()):
        progress("running the worst pictures again", share / 2)
        with _opened(step, graph, file, compiled, name) as session:
            side: list[Objects | Regions] = []
            for feed, labels, *_ in spool.chosen(numbers):
                assert labels is not None
                # some models take only batches of one size, or of a least size
                whole = spool.filled(feed, max(step.batch or 0, len(labels)))
                outputs = accuracy.outputs_of(task, session, whole, labels, first=len(side))
                side += drawn(outputs, labels)
                if not sides:
                    pixels += [thumbnails.pixels_of(feed, row) for row in range(len(labels))]
        sides.append(side)
    return list(zip(*sides, pixels, strict=True)) if numbers else []


def _opened(
    step: ShowWorst, graph: StepInput, file: str, compiled: StepInput | None, name: str
) -> Session:
    """A session of a role's engine if its device is here, otherwise of its graph."""
    if step.running is not None:
        return engine(step.running, name, compiled, step.kept)
    return simulated(graph.path / file, step.evidence)


def _picture(
    number: int,
    baseline: float,
    candidate: float,
    before: Objects | Regions,
    after: Objects | Regions,
    pixels: np.ndarray | None,
    *,
    embedded: bool,
) -> WorstPicture:
    lost, gained = changed(before, after)
    return WorstPicture(
        sample=number,
        baseline=baseline,
        candidate=candidate,
        lost=lost,
        gained=gained,
        drawing=_drawing(before, after, pixels) if embedded else None,
    )


def _drawing(
    before: Objects | Regions, after: Objects | Regions, pixels: np.ndarray | None
) -> Drawing:
    if isinstance(before, Regions) and isinstance(after, Regions):
        return _of_regions(before, after, pixels)
    assert isinstance(before, Objects) and isinstance(after, Objects)
    corners = [one.outline for one in (*before.annotated, *before.found, *after.found)]
    height, width = pixels.shape[:2] if pixels is not None else _bounds(corners)
    scale = thumbnails.fitting(width, height)
    return Drawing(
        width=max(round(width * scale), 1),
        height=max(round(height * scale), 1),
        picture=None if pixels is None else thumbnails.jpeg(pixels),
        annotated=tuple(
            AnnotatedObject(
                kind=shape.kind,
                outline=_points(shape.outline, scale),
                points=_points(shape.points, scale),
                baseline=bool(old),
                candidate=bool(new),
            )
            for shape, old, new in zip(before.annotated, before.right, after.right, strict=True)
        ),
        baseline=tuple(_found(before, scale)),
        candidate=tuple(_found(after, scale)),
    )


def _bounds(corners: list[np.ndarray]) -> tuple[int, int]:
    """Height and width that contain all corners."""
    width, height = np.ceil(np.concatenate(corners).max(0)).astype(int)
    return max(int(height), 1), max(int(width), 1)


def _found(side: Objects, scale: float) -> Iterator[FoundObject]:
    for shape, score, partner in zip(side.found, side.scores, side.partners, strict=True):
        yield FoundObject(
            kind=shape.kind,
            outline=_points(shape.outline, scale),
            points=_points(shape.points, scale),
            score=round(float(score), 3),
            right=bool(partner >= 0),
        )


def _points(points: np.ndarray, scale: float) -> tuple[Point, ...]:
    return tuple((round(float(x), 1), round(float(y), 1)) for x, y in points * scale)


def _of_regions(before: Regions, after: Regions, pixels: np.ndarray | None) -> Drawing:
    codes = np.zeros(before.right.shape, np.uint8)
    codes[before.right & ~after.right] = 1
    codes[~before.right & after.right] = 2
    codes[~before.right & ~after.right] = 3
    codes[~after.counts] = 0
    height, width = before.right.shape[-2:]
    scale = thumbnails.fitting(width, height)
    return Drawing(
        width=max(round(width * scale), 1),
        height=max(round(height * scale), 1),
        picture=None if pixels is None else thumbnails.jpeg(pixels),
        mask=thumbnails.png(codes, _MASK),
        annotated=(),
        baseline=(),
        candidate=(),
    )
