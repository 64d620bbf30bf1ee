"""The time of each layer of an engine on its device, from TensorRT's profiler.

    inspector ─JSON──────────────────────────→ the engine's layers ─┐
    profiler  ─(name, ms) of every run→ median ─────────────────────┴→ (layer, milliseconds)

Both use the same names for layers. The list is that of this engine. A report has the list of a
second build with fixed sizes, whose layers differ from those of an engine with dynamic sizes.
Unverified on a card (docs/reference/limits.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median

from optkit.craft.backends.layer_list import parse_layers
from optkit.craft.backends.tensorrt_objects import Library
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import ToolchainMissing

_RUNS = 500  # the largest number of runs; the last ones count


class Spent:
    """Milliseconds by layer for each run. If a run reports a layer twice, the times are added."""

    def __init__(self) -> None:
        self._runs: deque[dict[str, float]] = deque(maxlen=_RUNS)

    def begin(self) -> None:
        """Begin a new run."""
        self._runs.append({})

    def add(self, layer: str, ms: float) -> None:
        run = self._runs[-1]
        run[layer] = run.get(layer, 0.0) + ms

    def medians(self) -> dict[str, float]:
        """Medians over the runs. A run that does not report a layer counts as 0."""
        names = dict.fromkeys(name for run in self._runs for name in run)
        return {name: median(run.get(name, 0.0) for run in self._runs) for name in names}


def profiler(trt: Library, spent: Spent) -> object:
    """The profiler object to which an execution context reports the times of layers."""

    class Profiler(trt.IProfiler):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            spent.add(layer_name, ms)

    return Profiler()


def by_layer(
    listed: str, products: Collection[str], spent: Mapping[str, float]
) -> list[tuple[FusedLayer, float]]:
    """The layers of a description (`layer_list`) with their milliseconds. Layers that run no kernel
    of the graph (copies between formats, signals) follow, each with only its name. `products`: as
    for `parse_layers`.

    Raises ToolchainMissing for a list of unknown form, and if the profiler has no time for a layer
    that multiplies, because then the names do not correspond.
    """
    layers = parse_layers(listed, products)
    silent = [one.name for one in layers if one.products and one.name not in spent]
    if silent or not spent:
        told = f"no time of layer {silent[0]!r}" if silent else "no time of any layer"
        raise ToolchainMissing(f"the engine's profiler tells {told}", where="TensorRT")
    known = {one.name for one in layers}
    others = [FusedLayer(name, "unlisted", (), (), (), ()) for name in spent if name not in known]
    return [(one, spent.get(one.name, 0.0)) for one in (*layers, *others)]
