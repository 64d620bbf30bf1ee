"""How the `ort` form is judged: ONNX Runtime, as users run it, against the graph it was given, all
optimisations off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion.ort import to_ort
from optkit.craft.fusion.rule import FusionLog
from optkit.ground import graph

Feed = dict[str, np.ndarray]
Build = Callable[..., ir.Model]
AsOrt = Callable[..., tuple[ir.Model, FusionLog]]

_TYPES = {"float32": "float", "float64": "double", "bool": "bool"} | {
    name: name for name in ("int8", "uint8", "int32", "int64")
}


def _build(
    inputs: str,
    outputs: str,
    body: str,
    imports: dict[str, int] | None = None,
    /,
    **constants: np.ndarray,
) -> ir.Model:
    """A model from its inputs, outputs and nodes as ONNX text, its opset imports (21, if none are
    given), and its constants as arrays: those that the nodes name."""
    constants = {
        name: array for name, array in constants.items() if re.search(rf"\b{name}\b", body)
    }
    declared = [
        f"{_TYPES[array.dtype.name]}{list(array.shape) if array.ndim else ''} {name}"
        for name, array in constants.items()
    ]
    domains = ", ".join(f'"{name}" : {version}' for name, version in (imports or {"": 21}).items())
    head = f"<ir_version: 10, opset_import: [{domains}]>"
    text = f"{head} g ({', '.join([inputs, *declared])}) => ({outputs}) {{ {body} }}"
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs):
        if value.name in constants:
            model.graph.inputs.remove(value)
            value.const_value = ir.Tensor(np.asarray(constants[value.name]), name=value.name)
            model.graph.register_initializer(value)
    return graph.upgrade(model)


def _session(model: ir.Model, optimized: bool) -> onnxruntime.InferenceSession:
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture
def build() -> Build:
    return _build


@pytest.fixture
def as_ort(tmp_path: Path) -> AsOrt:
    """Rewrite a copy, assert that it computes the same, is valid and stays as it is."""

    def check(
        model: ir.Model,
        feed: Feed,
        rtol: float = 1e-5,
        atol: float = 1e-5,
        levels: tuple[bool, ...] = (False, True),
    ) -> tuple:
        after = model.clone()
        log = to_ort(after)
        expected = _session(model, optimized=False).run(None, feed)
        for optimized in levels:
            found = _session(after, optimized).run(None, feed)
            for old, new in zip(expected, found, strict=True):
                assert old.shape == new.shape and old.dtype == new.dtype
                np.testing.assert_allclose(new, old, rtol=rtol, atol=atol)
        assert graph.inputs(after) == graph.inputs(model)
        assert graph.outputs(after) == graph.outputs(model)
        graph.save(after, tmp_path / "model.onnx")
        graph.check(tmp_path / "model.onnx")
        assert to_ort(after).counts == {}  # a fixpoint
        return after, log

    return check
