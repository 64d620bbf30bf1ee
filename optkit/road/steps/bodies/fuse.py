from __future__ import annotations

import tempfile
from dataclasses import replace
from math import isfinite
from pathlib import Path

from optkit.craft import fusion
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.comparison import Feeds, difference, same_outputs
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.fuse import Fuse, FusedGraph

# rounding to half precision alone rarely changes an output by a larger share of its largest value
_SURE = 0.05


def run(step: Fuse, out: Path, progress: Progress) -> FusedGraph:
    progress("fusing", 0.1)
    given = before = step.graph.path / GRAPH
    model = graph.load(given)
    with tempfile.TemporaryDirectory() as folder:
        widened = () if step.arrange else fusion.widen(model)
        if widened:
            before = Path(folder) / GRAPH
            graph.save(model, before)
        log = fusion.arrange(model) if step.arrange else fusion.fuse(model)
        log = replace(log, entries=(*widened, *log.entries))
        graph.save(model, out / GRAPH)
        fused = FusedGraph(log=log.to_json(), max_error=None, **vars(signature(model)))
        if step.arrange and not log.counts:
            return fused
        if not step.compare:
            return replace(fused, warnings=(str(step.uncompared),))
        progress("comparing with the unfused graph", 0.6)
        feeds = Feeds(step.random, None if step.samples is None else step.samples.path)
        error = same_outputs(before, out / GRAPH, feeds, "fusion")
        warnings = _in_half(given, out / GRAPH, feeds) if widened else ()
        return replace(fused, max_error=error, warnings=warnings)


def _in_half(given: Path, fused: Path, feeds: Feeds) -> tuple[str, ...]:
    """A warning if the outputs of a half-precision model differ much from those of the model in
    FP32. The causes are rounding and overflow in half precision."""
    try:
        # with optimizations, ONNX Runtime would skip the roundings between operators
        name, error = difference(given, fused, feeds, level="none")
    except InputRefused:  # ONNX Runtime has no half-precision kernel for it
        return ()
    if error <= _SURE:
        return ()
    much = f"by {error:.0%} of its largest value" if isfinite(error) else "in what is finite"
    message = f"output {name!r} differs {much} from the model as given, which computes in half"
    return (f"{message} precision; what is called FP32 here computes in float32",)
