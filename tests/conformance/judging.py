"""One model, as given and in each form optkit makes of it: equal, refused, or a fault.

Everything runs in this process: a judge starts in milliseconds, and whoever judges thousands of
models keeps it in a child that may die (`table.judge_all`).
"""

from __future__ import annotations

import ctypes
import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx
import onnxruntime

from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import InputSpec, TensorInfo, axes_of
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.road.steps import perform
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH

Verdict = Literal["equal", "refused", "wrong", "crashed", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Feed = Mapping[str, Any]

FORMS = ("standard", "ort")
TOLERANCE = 1e-4
HALF_TOLERANCE = 2e-2
"""Of a model that rounds to FP16 or BF16 on its way: what is rounded apart may differ by units."""
_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\b\d+(\.\d+)?\b")


@dataclass(frozen=True)
class Case:
    """A model and what it is run on. `seed` of a random graph, for whoever wants to see it."""

    name: str
    model: onnx.ModelProto
    feeds: Sequence[Feed]


@dataclass(frozen=True)
class Outcome:
    """`stage`: export, fuse, ort or one of FORMS; `reason`: the message of what went wrong."""

    verdict: Verdict
    stage: str = ""
    reason: str = ""

    @property
    def kind(self) -> str:
        """The reason without names and numbers: what refusals are counted by."""
        return _QUOTED.sub("…", self.reason)


def judge(case: Case) -> Outcome:
    """Run the model as given, make both forms of it, and run these on the same feeds."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "given" / GRAPH
        given.parent.mkdir()
        onnx.save(case.model, given)
        try:
            expected = [_run(given, feed) for feed in case.feeds]
            again = [_run(given, feed) for feed in case.feeds]
        except Exception as error:  # ONNX Runtime's own types derive from Exception directly
            return Outcome("not run", "given", _line(error))
        random = not all(map(_same, expected, again))
        tolerance = HALF_TOLERANCE if _rounds(case.model.graph) else TOLERANCE
        stage = "export"
        try:
            exported = _step("export", given, {"kind": "onnx", "inputs": []})
            stage = "fuse"
            fused = _fused(exported, case.feeds)
            stage = "ort"
            written = _step("ort", fused, {})
            for stage, file in zip(FORMS, (fused, written), strict=True):
                found = [_run(file, feed) for feed in case.feeds]
                for one, other in zip(expected, found, strict=True):
                    if told := _difference(one, other, tolerance, random):
                        return Outcome("wrong", stage, told)
        except InputRefused as error:
            refused = stage not in FORMS
            return Outcome("refused" if refused else "crashed", stage, error.message)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-1:]).split("\n")[0].strip()
            return Outcome("crashed", stage, f"{type(error).__name__}: {_line(error)} {where}")
    return Outcome("equal")


def _step(step: str, before: Path, params: dict[str, Any], **more: Path) -> Path:
    """A step of the pipeline on a file; its folder lies beside that of the file before."""
    out = before.parent.parent / step
    out.mkdir(exist_ok=True)
    name, given = ("model", before) if step == "export" else ("graph", before.parent)
    perform(step, {name: given, **more}, params, out, lambda what, fraction: None)
    return out / GRAPH


def _fused(exported: Path, feeds: Sequence[Feed]) -> Path:
    """Compared on random inputs; where those of the case are asked for, on these."""
    params = _sizes(exported)
    try:
        return _step("fuse", exported, params)
    except InputRefused as error:
        if "random inputs" not in error.message:
            raise
    samples = exported.parent.parent / "samples"
    infos = [spec.info for spec in from_json(tuple[InputSpec, ...], params["inputs"])]
    names = {info.name for info in infos}
    given = [{name: x for name, x in feed.items() if name in names} for feed in feeds]
    spool_writer.write(
        given, samples, infos, limit_samples=None, memory_bytes=1 << 28,
        progress=lambda what, fraction: None,
        optional=[axis for info in infos for axis in axes_of(info.shape)],
    )  # fmt: skip
    return _step("fuse", exported, params, samples=samples)


def _sizes(file: Path) -> dict[str, Any]:
    """What a build without a recipe knows of a model: its inputs, and no range of an axis."""
    found = signature(graph.load(file))
    specs = [InputSpec(TensorInfo(name, kind, shape)) for name, kind, shape in found.inputs]
    arguments = {name: asdict(one) for name, one in found.arguments.items()}
    return {"inputs": [spec.to_json() for spec in specs], "axes": {}, "arguments": arguments}


def _run(file: Path, feed: Feed) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    feed = {name: value for name, value in feed.items() if name in wanted}
    names = [value.name for value in session.get_outputs()]
    if not all(isinstance(value, np.ndarray) for value in feed.values()):  # a sequence, or nothing
        found: list[Any] = session.run(names, feed)
        return found
    given = {name: _ort_value(array) for name, array in feed.items()}
    return [_array(value) for value in session.run_with_ort_values(names, given)]


def _ort_value(array: np.ndarray) -> onnxruntime.OrtValue:
    """Strings, and dtypes that numpy lacks, come out of a session whose model holds them."""
    if array.dtype.isbuiltin == 1 and array.dtype.kind in "biuf":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    tensor = onnx.numpy_helper.from_array(array, "x")
    declared = onnx.helper.make_tensor_value_info("x", tensor.data_type, array.shape)
    graph = onnx.helper.make_graph([], "held", [], [declared], [tensor])
    opset = [onnx.helper.make_opsetid("", 21)]
    held = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    session = onnxruntime.InferenceSession(
        held.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run_with_ort_values(["x"], {})[0]


def _array(value: onnxruntime.OrtValue) -> Any:
    """What is no tensor stays as it is."""
    if not value.is_tensor():
        return value
    kind = value.element_type()
    if onnx.helper.tensor_dtype_to_np_dtype(kind).isbuiltin == 1:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return onnx.numpy_helper.to_array(
        onnx.TensorProto(data_type=kind, dims=value.shape(), raw_data=raw)
    )


def _same(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    return not _difference(expected, found, 0.0, False)


def _difference(
    expected: Sequence[Any], found: Sequence[Any], tolerance: float, random: bool
) -> str:
    """How two lists of outputs differ, the largest of each output's values being 1; "" if they
    agree. `random`: the model's results are, so that only dtypes and shapes can be compared."""
    if len(expected) != len(found):
        return f"{len(expected)} outputs became {len(found)}"
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(one, np.ndarray):
            return f"output {index} is no tensor: nothing compares it"
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"output {index}: {one.dtype} {one.shape} became {other.dtype} {other.shape}"
        if random:
            continue
        if one.dtype.kind not in "fV":
            if not np.array_equal(one, other):
                return f"output {index}: {np.mean(one != other):.3f} of its integers differ"
            continue
        a, b = one.astype(np.float64), other.astype(np.float64)
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
        error = np.abs(a[differs] - b[differs]).max(initial=0.0) / scale
        if not error <= tolerance:
            return f"output {index}: differs by {error:.1e} of its largest value"
    return ""


def _rounds(graph: onnx.GraphProto) -> bool:
    """Whether some value of the graph is half."""
    values = [*graph.input, *graph.output, *graph.value_info]
    halves = any(value.type.tensor_type.elem_type in _HALVES for value in values)
    halves = halves or any(tensor.data_type in _HALVES for tensor in graph.initializer)
    attributes = (a for node in graph.node for a in node.attribute)
    return halves or any(
        (a.name in ("to", "dtype") and a.i in _HALVES) or (a.HasField("g") and _rounds(a.g))
        for a in attributes
    )


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
