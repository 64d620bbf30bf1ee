"""Types and shapes of what operators outside the standard make: those of a library that the graph
names. Without them, the inference of the library onnx ends there, and nothing behind it could be
quantized or planned.

The types are those of ONNX Runtime. The shapes are observed: random inputs in two sizes of every
axis, the first size twice. A dimension that stays the same is fixed, one that follows an axis has
its name, any other stays unknown. An output whose size depends on the values of an input is
therefore fixed by mistake if three random inputs give the same size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec, axes_of
from optkit.ground import graph
from optkit.ground.data.synthetic import random_feed
from optkit.ground.operator_library import NOTE, PLUGINS_NOTE, OperatorLibrary
from optkit.ground.runtimes import Session

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class CustomOperators:
    """The library of such operators, which the user trusts. `session`: opens a graph that names
    it; `plugins`: the library of the same operators for TensorRT."""

    library: OperatorLibrary
    session: Callable[[Path], Session]
    plugins: OperatorLibrary | None = None

    def declare(self, model: ir.Model, specs: Sequence[InputSpec]) -> None:
        """Let the graph name its libraries, and set the missing types and shapes of the outputs of
        its operators, and those of what follows them. `specs`: the inputs that the recipe declares.
        Raises InputRefused if ONNX Runtime does not open the graph."""
        model.metadata_props[NOTE] = self.library.note
        if self.plugins is not None:
            model.metadata_props[PLUGINS_NOTE] = self.plugins.note
        unknown = [
            value
            for node in model.graph
            if node.domain not in _STANDARD
            for value in node.outputs
            if value.name and (value.dtype is None or value.shape is None)
        ]
        if unknown:
            self._observe(model, unknown, {spec.info.name: spec for spec in specs})
            graph.infer_shapes(model)

    def _observe(
        self, model: ir.Model, unknown: Sequence[ir.Value], declared: Mapping[str, InputSpec]
    ) -> None:
        names = [str(value.name) for value in unknown]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "observed.onnx"
            graph.save(_with_outputs(model, names), place)
            opened = self.session(place)
            inputs = [declared.get(info.name, InputSpec(info)) for info in opened.inputs]
            shapes = _shapes(opened, inputs, names)
        types = {info.name: np.dtype(info.dtype) for info in opened.outputs}
        for value, name in zip(unknown, names, strict=True):
            value.dtype = ir.DataType.from_numpy(types[name])
            if value.shape is None and name in shapes:
                value.shape = ir.Shape(shapes[name])


def _with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    copy = model.clone()
    there = {value.name for value in copy.graph.outputs}
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.extend(values[name] for name in names if name not in there)
    return copy


def _shapes(
    session: Session, inputs: Sequence[InputSpec], names: Sequence[str]
) -> dict[str, list[int | str | None]]:
    """Name → dimensions; nothing if the graph does not run at these sizes."""
    axes = axes_of([dim for spec in inputs for dim in spec.info.shape])
    small = {axis: 2 + 2 * index for index, axis in enumerate(axes)}
    large = {axis: size + 1 for axis, size in small.items()}
    try:
        runs = [
            session.run(random_feed(inputs, sizes, seed))
            for seed, sizes in enumerate((small, small, large))
        ]
    except InputRefused:
        return {}
    return {
        name: dims
        for name in names
        if (dims := observed([run[name].shape for run in runs], small, large)) is not None
    }


def observed(
    seen: Sequence[tuple[int, ...]], small: Mapping[str, int], large: Mapping[str, int]
) -> list[int | str | None] | None:
    """The dimensions of a value in the three runs; None if their number changed."""
    if len({len(shape) for shape in seen}) > 1:
        return None
    return [_dim(sizes, small, large) for sizes in zip(*seen, strict=True)]


def _dim(
    sizes: tuple[int, ...], small: Mapping[str, int], large: Mapping[str, int]
) -> int | str | None:
    first, again, other = sizes
    if first != again:
        return None
    if first == other:
        return first
    named = [axis for axis in small if (small[axis], large[axis]) == (first, other)]
    return named[0] if named else None
