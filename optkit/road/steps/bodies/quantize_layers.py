"""GPTQ of a graph that is larger than memory, part by part, as `quantization.layerwise` decides.

values-0 … values-i   the values that part i reads from earlier parts, one file per feed; the
                      files of the next part replace them
codes-i               the codes of the weights of part i
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft import calibration
from optkit.craft.calibration.feeds import Cutter
from optkit.craft.calibration.segments import feed_size
from optkit.craft.quantization.out_of_core.layerwise import LayerwiseQuantization
from optkit.craft.quantization.placement.assign import assign
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.graph import GraphPart
from optkit.ground.runtimes import Session
from optkit.ground.statistics import Statistics
from optkit.ground.store import storage_errors
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.bodies.weight_remarks import shortened
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.quantize_layers import QuantizeLayers

_WEIGHTS_SHARE = 16  # share of the memory for the weights of one part, as they are stored
_SOLVING_SHARE = 0.75


def run(step: QuantizeLayers, out: Path, progress: Progress) -> QuantizationResult:
    scheme, rules, settings = step.scheme, step.scheme.rules, step.settings.settings
    fused, planned = graph.load(step.fused.path / GRAPH), step.planned_memory
    assignment = assign(fused, scheme, overrides=settings.nodes)
    parts = graph.cut(fused, graph.places(fused, planned // _WEIGHTS_SHARE))
    with ExitStack() as stack:
        folder = step.checkpoint or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        carrier, solving = scheme.dtype, int(planned * _SOLVING_SHARE)
        shared = _shared(fused, parts)
        layers = LayerwiseQuantization(
            assignment, rules, settings, carrier, solving, folder, shared
        )
        samples = Spool(step.samples.path)
        crossing = {name for part in parts for name in part.reads}
        size = feed_size(fused, crossing, samples, step.batch)
        run = _Run(fused, layers, samples, size, step.memory, folder)
        wanted = assignment.quantized().keys()
        last = max((n for n, p in enumerate(parts) if wanted & set(p.nodes)), default=-1)
        first = run.resume()
        for index in range(first, last + 1):
            run.advance(index, parts[index], _Share(progress, index, last + 1), last=index == last)
        progress("writing the graph", 1.0)
        model = graph.load(step.carrier.path / GRAPH)
        log = layers.apply(model)
        graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return QuantizationResult(
        log=log.to_json(),
        assignment=assignment,
        warnings=shortened(log.warnings),
        **vars(signature(model)),
    )


@dataclass
class _Run:
    """The samples on their way through the parts of the graph."""

    model: ir.Model
    layers: LayerwiseQuantization
    samples: Spool
    size: int | None  # samples per feed; None: as they were written
    memory: int
    folder: Path

    def resume(self) -> int:
        """The number of the next part."""
        found = [int(path.name.split("-")[1]) for path in self.folder.glob("values-*")]
        for index in range(max(found, default=0)):
            self.layers.resume(index)
        return max(found, default=0)

    def advance(self, index: int, part: GraphPart, progress: Progress, *, last: bool) -> None:
        """Quantize one part, then run it to compute the values that the next part reads."""
        outputs = [v for v in self.model.graph.outputs if _maker(v) in part.nodes]
        made = [name for name in part.leaves if name not in part.reads]
        small = graph.between(self.model, part.reads, [*made, *(str(v.name) for v in outputs)])
        feeds = _Feeds(self.samples, self.size, self._values(index), part.reads)
        self.layers.quantize(small, self._observe(small, feeds, progress), index)
        if not last:
            progress("running it with its codes", 0.8)
            self._carry(graph.between(small, (), made), part, feeds, self._values(index + 1))
        shutil.rmtree(self._values(index), ignore_errors=True)

    def _observe(self, small: ir.Model, feeds: _Feeds, progress: Progress) -> Statistics | None:
        taps = self.layers.taps(small)
        if not taps:
            return None
        given = {str(value.name) for value in small.graph.inputs}
        names = [tap.name for tap in taps if tap.name not in given]
        tapped = graph.between(small, (), names or [str(small.graph.outputs[0].name)])
        with _session(tapped) as session:
            return calibration.observe(
                session,
                feeds,
                taps,
                memory_bytes=self._free // 4 * 3,  # the runtime holds weights and inner values
                progress=lambda what, share: progress(what, share * 0.6),
                fills=calibration.fills(tapped, [tap.name for tap in taps]),
                total=len(self.samples),
            )

    def _carry(self, small: ir.Model, part: GraphPart, feeds: _Feeds, place: Path) -> None:
        """For every feed, keep the values that later parts read."""
        temporary = place.with_name(f".{place.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        with _session(small) if small.graph.outputs else nullcontext() as session:
            cutter = Cutter(session, self._free // 2) if session is not None else None
            for number, feed in enumerate(feeds):
                found = feed if cutter is None else feed | cutter.run(feed)
                with storage_errors(temporary):
                    np.savez(temporary / f"{number}.npz", *(found[n] for n in part.leaves))
        temporary.rename(place)

    def _values(self, index: int) -> Path:
        return self.folder / f"values-{index}"

    @property
    def _free(self) -> int:
        return max(self.memory - resident(os.getpid()), 0)


@dataclass
class _Feeds:
    """The feeds of the samples, each with the values `reads` from the parts before."""

    samples: Spool
    size: int | None
    place: Path
    reads: Sequence[str]

    def __iter__(self) -> Iterator[Feed]:
        for number, (feed, _) in enumerate(self.samples.batches(self.size)):
            if not self.reads:
                yield feed
                continue
            with np.load(self.place / f"{number}.npz") as stored:
                yield feed | {n: stored[f"arr_{i}"] for i, n in enumerate(self.reads)}


@dataclass
class _Share:
    """Progress of one part out of `parts`."""

    progress: Progress
    index: int
    parts: int

    def __call__(self, what: str, share: float) -> None:
        told = f"part {self.index + 1} of {self.parts}: {what}"
        self.progress(told, (self.index + share) / self.parts)


@contextmanager
def _session(model: ir.Model) -> Iterator[Session]:
    """A session of the graph without optimization, because folding and reordering constants would
    copy them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(model, place, inline_limit=0)  # the runtime maps data files
        with cpu(place, level="none", pooled=False) as session:
            yield session


def _maker(value: ir.Value) -> str | None:
    producer = value.producer()
    return None if producer is None else producer.name


def _shared(model: ir.Model, parts: Sequence[GraphPart]) -> frozenset[str]:
    """Weights of nodes in several parts."""
    place = {node: index for index, part in enumerate(parts) for node in part.nodes}
    found: dict[str, set[int]] = {}
    for node in model.graph:
        if (weight := graph.constant_weight(node)) is not None:
            found.setdefault(str(weight[1].name), set()).add(place[str(node.name)])
    return frozenset(name for name, places in found.items() if len(places) > 1)
