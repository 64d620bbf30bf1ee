"""Runs a graph that is larger than memory on all samples, part by part.

values-0 … values-i   the values that part i reads from earlier parts, one file per feed; the files
                      of the next part replace them
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft.calibration.feeds import Cutter
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.graph import GraphPart
from optkit.ground.runtimes import Level, Session
from optkit.ground.store import storage_errors
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH

_WEIGHTS_SHARE = 16  # share of the memory for the weights of one part, as they are stored


def parts_of(model: ir.Model, planned_memory: int) -> list[GraphPart]:
    """The parts of a graph for this memory."""
    return graph.cut(model, graph.places(model, planned_memory // _WEIGHTS_SHARE))


@dataclass
class CrossingValues:
    """The samples on their way through the parts. `feeds`: the inputs of the graph."""

    feeds: Iterable[Feed]
    memory: int
    folder: Path

    def reached(self) -> int:
        """The number of the part that comes next."""
        found = [int(path.name.split("-")[1]) for path in self.folder.glob("values-*")]
        return max(found, default=0)

    def before(self, index: int, part: GraphPart) -> PartFeeds:
        """The inputs of the graph, with the values that part number `index` reads."""
        return PartFeeds(self.feeds, self._place(index), part.reads)

    def carry(self, session: Session | None, index: int, part: GraphPart) -> None:
        """For every feed of part number `index`, keep the values that later parts read. The session
        computes those that the part makes; None: it makes none."""
        place = self._place(index + 1)
        temporary = place.with_name(f".{place.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        cutter = Cutter(session, self.free // 2) if session is not None else None
        for number, feed in enumerate(self.before(index, part)):
            found = feed if cutter is None else feed | cutter.run(feed)
            with storage_errors(temporary):
                np.savez(temporary / f"{number}.npz", *(found[n] for n in part.leaves))
        temporary.rename(place)

    def drop(self, index: int) -> None:
        """Remove the values that part number `index` read."""
        shutil.rmtree(self._place(index), ignore_errors=True)

    @property
    def free(self) -> int:
        """Bytes of memory that this process may still take."""
        return max(self.memory - resident(os.getpid()), 0)

    def _place(self, index: int) -> Path:
        return self.folder / f"values-{index}"


@dataclass
class PartFeeds:
    """The feeds of the samples, each with the values `reads` from the parts before."""

    feeds: Iterable[Feed]
    place: Path
    reads: Sequence[str]

    def __iter__(self) -> Iterator[Feed]:
        for number, feed in enumerate(self.feeds):
            if not self.reads:
                yield feed
                continue
            with np.load(self.place / f"{number}.npz") as stored:
                yield feed | {n: stored[f"arr_{i}"] for i, n in enumerate(self.reads)}


@dataclass
class PartProgress:
    """Progress of one part out of `parts`. The time that is left follows from its share."""

    progress: Progress
    index: int
    parts: int

    def __call__(self, what: str, share: float) -> None:
        told = f"part {self.index + 1} of {self.parts}: {what}"
        self.progress(told, (self.index + share) / self.parts)


@contextmanager
def part_session(model: ir.Model, level: Level) -> Iterator[Session]:
    """A session of a part."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(model, place, inline_limit=0)  # the runtime maps data files
        with cpu(place, level=level, pooled=False) as session:
            yield session
