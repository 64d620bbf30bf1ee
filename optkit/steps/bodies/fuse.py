from __future__ import annotations

import tempfile
from dataclasses import replace
from math import isfinite
from pathlib import Path

from optkit import fusion, graph
from optkit.errors import InputRefused
from optkit.execute.step import Progress
from optkit.steps.bodies.comparison import Feeds, difference, same_outputs
from optkit.steps.bodies.graphs import signature
from optkit.steps.files import GRAPH
from optkit.steps.fuse import Fuse, Fused

_SURE = 0.05  # half precision as such rarely moves an output by more of its largest value


def run(step: Fuse, out: Path, progress: Progress) -> Fused:
    progress("fusing", 0.1)
    given = before = step.graph.path / GRAPH
    model = graph.load(given)
    with tempfile.TemporaryDirectory() as folder:
        if widened := fusion.widen(model):
            before = Path(folder) / GRAPH
            graph.save(model, before)
        log = fusion.fuse(model)
        log = replace(log, entries=(*widened, *log.entries))
        graph.save(model, out / GRAPH)
        fused = Fused(log=log.to_json(), max_error=None, **signature(model)._asdict())
        if not step.compare:
            return replace(fused, warnings=(str(step.uncompared),))
        progress("comparing with the unfused graph", 0.6)
        feeds = Feeds(step.random, None if step.samples is None else step.samples.path)
        error = same_outputs(before, out / GRAPH, feeds, "fusion")
        warnings = _in_half(given, out / GRAPH, feeds) if widened else ()
        return replace(fused, max_error=error, warnings=warnings)


def _in_half(given: Path, fused: Path, feeds: Feeds) -> tuple[str, ...]:
    """How far a half-precision model is from the same in FP32, where that is much. Rounding and
    overflow of what it computes in half are what the two differ by."""
    try:
        # optimized, ONNX Runtime would leave out the roundings between operators
        name, error = difference(given, fused, feeds, level="none")
    except InputRefused:  # ONNX Runtime has no kernel of it in half
        return ()
    if error <= _SURE:
        return ()
    much = f"by {error:.0%} of its largest value" if isfinite(error) else "in what is finite"
    message = f"output {name!r} differs {much} from the model as given, which computes in half"
    return (f"{message} precision; what is called FP32 here computes in float32",)
