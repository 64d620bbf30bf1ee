"""The layers of an engine, from the best of two lists.

    JSON of the inspector of the engine in the artifact   on a machine with the device
    log of the builder                                    on every machine

If optkit understands neither of them, the layers are unknown. Builds and measurements do not depend
on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from optkit.craft.backends.layer_list import parse_layers
from optkit.craft.backends.tensorrt_objects import Context, Library, LoadedEngine
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import ToolchainMissing


@dataclass(frozen=True)
class EngineDescription:
    """`layers`: None if they are unknown; `note` then says why."""

    layers: tuple[FusedLayer, ...] | None
    note: str | None = None

    @property
    def sized(self) -> bool:
        """Whether all sizes and types are known, so that bytes can be counted."""
        return self.layers is not None and all(one.bytes_moved is not None for one in self.layers)

    @property
    def bytes_moved(self) -> int | None:
        """The bytes of all layers together; None if a size is unknown."""
        if self.layers is None or not self.sized:
            return None
        return sum(one.bytes_moved or 0 for one in self.layers)


def described(texts: Iterable[str], products: Collection[str]) -> EngineDescription:
    """The first of the descriptions that is understood and names a layer. `products`: as for
    `parse_layers`."""
    refused = "none is given"
    for text in texts:
        try:
            if layers := parse_layers(text, products):
                return EngineDescription(layers)
        except ToolchainMissing as error:
            refused = error.message if text else refused
    return EngineDescription(None, f"landing unknown: of the engine's layers {refused}")


def inspected(
    trt: Library,
    engine: LoadedEngine,
    context: Context,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> str:
    """The JSON of an engine's inspector. `shapes`: those of the inputs, which are set in `context`
    first; empty if they are already set."""
    for name, shape in (shapes or {}).items():
        context.set_input_shape(name, shape)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
