"""GPTQ of a graph that is larger than memory, part by part, as `quantization.layerwise` decides.

values-i   the values that part i reads from earlier parts (`graph_parts`)
codes-i    the codes of the weights of part i
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from optkit.craft import calibration
from optkit.craft.calibration.segments import feed_size
from optkit.craft.quantization.out_of_core.layerwise import LayerwiseQuantization
from optkit.craft.quantization.placement.assign import assign
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.graph import GraphPart
from optkit.ground.statistics import Statistics
from optkit.road.steps.bodies.graph_parts import (
    CrossingValues,
    PartFeeds,
    PartProgress,
    part_session,
    parts_of,
)
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.bodies.weight_remarks import shortened
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.quantize_layers import QuantizeLayers

_SOLVING_SHARE = 0.75


def run(step: QuantizeLayers, out: Path, progress: Progress) -> QuantizationResult:
    scheme, rules, settings = step.scheme, step.scheme.rules, step.settings.settings
    fused, planned = graph.load(step.fused.path / GRAPH), step.planned_memory
    assignment = assign(fused, scheme, overrides=settings.nodes)
    parts = parts_of(fused, planned)
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
        feeds = calibration.SpooledFeeds(samples, size)
        run = _Run(fused, layers, CrossingValues(feeds, step.memory, folder), len(samples))
        wanted = assignment.quantized().keys()
        last = max((n for n, p in enumerate(parts) if wanted & set(p.nodes)), default=-1)
        first = run.resume()
        for index in range(first, last + 1):
            told = PartProgress(progress, index, last + 1)
            run.advance(index, parts[index], told, last=index == last)
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
    """The samples on their way through the parts of the graph. Sessions do not optimize, because
    folding and reordering constants would copy them."""

    model: ir.Model
    layers: LayerwiseQuantization
    values: CrossingValues
    samples: int

    def resume(self) -> int:
        """The number of the next part."""
        reached = self.values.reached()
        for index in range(reached):
            self.layers.resume(index)
        return reached

    def advance(self, index: int, part: GraphPart, progress: Progress, *, last: bool) -> None:
        """Quantize one part, then run it to compute the values that the next part reads."""
        outputs = [v for v in self.model.graph.outputs if _maker(v) in part.nodes]
        made = [name for name in part.leaves if name not in part.reads]
        small = graph.between(self.model, part.reads, [*made, *(str(v.name) for v in outputs)])
        feeds = self.values.before(index, part)
        self.layers.quantize(small, self._observe(small, feeds, progress), index)
        if not last:
            progress("running it with its codes", 0.8)
            coded = graph.between(small, (), made)
            with part_session(coded, "none") if coded.graph.outputs else nullcontext() as session:
                self.values.carry(session, index, part)
        self.values.drop(index)

    def _observe(self, small: ir.Model, feeds: PartFeeds, progress: Progress) -> Statistics | None:
        taps = self.layers.taps(small)
        if not taps:
            return None
        given = {str(value.name) for value in small.graph.inputs}
        names = [tap.name for tap in taps if tap.name not in given]
        tapped = graph.between(small, (), names or [str(small.graph.outputs[0].name)])
        with part_session(tapped, "none") as session:
            return calibration.observe(
                session,
                feeds,
                taps,
                memory_bytes=self.values.free // 4 * 3,  # the runtime holds weights and values
                progress=lambda what, share: progress("observing its values", share * 0.6),
                fills=calibration.fills(tapped, [tap.name for tap in taps]),
                total=self.samples,
            )


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
