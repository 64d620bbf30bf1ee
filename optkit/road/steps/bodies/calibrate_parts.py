"""Calibration of a graph that is larger than memory: each part of it runs on all samples, and its
values are observed as in the whole graph.

values-i       the values that part i reads from earlier parts (`graph_parts`)
statistics-i   of the values that part i makes
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from optkit.craft import calibration
from optkit.craft.calibration.segments import feed_size
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.local import trim
from optkit.ground.execute.step import Progress
from optkit.ground.graph import GraphPart
from optkit.ground.statistics import Statistics, Tap, load, save
from optkit.road.steps.bodies.graph_parts import (
    CrossingValues,
    PartProgress,
    part_session,
    parts_of,
)
from optkit.road.steps.bodies.taps import taps_of_families
from optkit.road.steps.calibrate import Calibrate
from optkit.road.steps.file_names import GRAPH, STATISTICS


def observed(step: Calibrate, progress: Progress) -> Statistics:
    """The statistics of all values, as a run of the whole graph gives them."""
    assert step.planned_memory is not None
    model = graph.load(step.graph.path / GRAPH)
    parts = parts_of(model, step.planned_memory)
    samples = Spool(step.samples.path)
    crossing = {name for part in parts for name in part.reads}
    size = feed_size(model, crossing, samples, step.batch)
    feeds = calibration.SpooledFeeds(samples, size, step.shard or (0, 1))
    taps = taps_of_families(model, step.families, moments=step.moments)
    with ExitStack() as stack:
        folder = step.checkpoint or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        values = CrossingValues(feeds, step.memory, folder)
        run = _Run(
            model, {tap.name: tap for tap in taps if tap.chosen is None}, feeds, folder, values
        )
        last = max((n for n, part in enumerate(parts) if run.taps_of(n, part)), default=0)
        for index in range(run.values.reached(), last + 1):
            told = PartProgress(progress, index, last + 1)
            run.advance(index, parts[index], told, last=index == last)
        return run.joined(last + 1)


@dataclass
class _Run:
    """The samples on their way through the parts of the graph. `taps`: by name of the value."""

    model: ir.Model
    taps: Mapping[str, Tap]
    feeds: calibration.SpooledFeeds
    folder: Path
    values: CrossingValues

    def taps_of(self, index: int, part: GraphPart) -> list[Tap]:
        """Those of the values that a part makes; the first part has those of the inputs, too."""
        made = [str(value.name) for value in self.model.graph.inputs] if index == 0 else []
        names = set(part.nodes)
        made += [
            str(value.name)
            for node in self.model.graph
            if node.name in names
            for value in node.outputs
        ]
        return [self.taps[name] for name in made if name in self.taps]

    def advance(self, index: int, part: GraphPart, progress: Progress, *, last: bool) -> None:
        """Observe the values of a part, and keep those that later parts read."""
        taps = self.taps_of(index, part)
        given = {str(value.name) for value in self.model.graph.inputs}
        made = [tap.name for tap in taps if tap.name not in given]
        left = [] if last else [name for name in part.leaves if name not in part.reads]
        wanted = [*made, *left]
        if index == 0:  # it runs in any case, because its statistics tell what was read
            wanted = wanted or [str(self.model.graph[0].outputs[0].name)]
        small = graph.between(self.model, part.reads, wanted)
        with part_session(small, "all") if wanted else nullcontext() as session:
            trim()
            if session is not None and (taps or index == 0):
                found = calibration.observe(
                    session,
                    self.values.before(index, part),
                    taps,
                    memory_bytes=self.values.free // 2,
                    progress=lambda what, share: progress("observing its values", share * 0.6),
                    fills=calibration.fills(self.model, [tap.name for tap in taps]),
                    derived=part.reads,
                    first=self.feeds.first,
                    total=self.feeds.samples,
                )
                place = self._place(index)
                place.parent.mkdir(exist_ok=True)
                save(found, place)
            if not last:
                progress("keeping what the next part reads", 0.8)
                self.values.carry(session, index, part)
        self.values.drop(index)

    def joined(self, parts: int) -> Statistics:
        """The statistics of all parts. Those of the first one tell which samples were read."""
        found = [load(place) for place in map(self._place, range(parts)) if place.exists()]
        values = {name: value for each in found for name, value in each.values.items()}
        return replace(found[0], values=dict(sorted(values.items())))

    def _place(self, index: int) -> Path:
        return self.folder / f"statistics-{index}" / STATISTICS
