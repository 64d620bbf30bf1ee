"""Ranges from calibration caches of TensorRT and encodings of AIMET."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optkit
from optkit.craft.foreign import read_ranges
from optkit.craft.foreign.qdq_parameters import QUANTIZE
from optkit.craft.quantization.ranges import choose
from optkit.facts.codec import to_json
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import precision
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import backend
from optkit.ground.statistics import load
from optkit.ground.workspace import Workspace
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH, STATISTICS

HEAD = "TRT-8601-EntropyCalibration2\n"
NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[n, 32] image) => (float[n, 32] logits)
{ hidden = MatMul(image, image) active = Relu(hidden) middle = MatMul(active, active)
  curve = Tanh(middle) logits = MatMul(curve, curve) }"""
SYMMETRIC = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True"}


def hexadecimal(scale: float) -> str:
    """As TensorRT writes it."""
    return struct.pack("!f", scale).hex()


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "ranges"
    file.write_text(text)
    return file


def net(folder: Path) -> Path:
    model = ir.from_onnx_text(NET)
    rng = np.random.default_rng(1)
    for number, node in enumerate(node for node in model.graph if node.op_type == "MatMul"):
        weights = rng.normal(scale=0.2, size=(32, 32)).astype(np.float32)
        node.replace_input_with(1, graph.add_constant(model.graph, f"weight.{number}", weights))
    graph.ensure_names(model)
    graph.infer_shapes(model)
    graph.save(model, folder / GRAPH)
    return folder / GRAPH


@given(st.dictionaries(
    st.text("abz/_.:()[] 01", min_size=1).map(str.strip).filter(lambda s: s and s[-1] != ":"),
    st.floats(0, 1e6, width=32), min_size=1,
))  # fmt: skip
def test_a_cache_gives_127_scales_on_both_sides(
    tmp_path_factory: Any, scales: dict[str, float]
) -> None:
    lines = [f"{name}: {hexadecimal(scale)}\n" for name, scale in scales.items()]
    file = written(tmp_path_factory.mktemp("cache"), HEAD + "".join(lines))
    found = read_ranges(file)
    assert found.ranges == {name: (-127 * s, 127 * s) for name, s in scales.items()}
    assert found.written_by == "TensorRT, TRT-8601-EntropyCalibration2"


def test_a_cache_as_tensorrt_writes_it(tmp_path: Path) -> None:
    """0x3c010a14 is 1.0 / 127 as float32."""
    found = read_ranges(written(tmp_path, HEAD + "input.1: 3c010204\n(Unnamed Layer* 3): 0\n\n"))
    low, high = found.ranges["input.1"]
    assert (low, high) == pytest.approx((-1, 1), rel=1e-6)
    assert found.ranges["(Unnamed Layer* 3)"] == (0, 0)


@pytest.mark.parametrize(
    ("version", "activations"),
    [
        ("0.6.1", {"image": [SYMMETRIC | {"min": -1.5, "max": 1.48828125, "offset": -128}]}),
        ("1.0.0", [{"name": "image", "bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR",
                    "is_sym": True, "scale": [1.5 / 128], "offset": [-128]}]),
    ],
)  # fmt: skip
def test_encodings_of_aimet(tmp_path: Path, version: str, activations: object) -> None:
    data = {"version": version, "activation_encodings": activations,
            "param_encodings": {"w1": [SYMMETRIC | {"min": -9, "max": 9}]}}  # fmt: skip
    found = read_ranges(written(tmp_path, json.dumps(data)))
    assert found.ranges == {"image": pytest.approx((-1.5, 1.5 * 127 / 128))}
    assert found.written_by == f"AIMET, encodings {version}"


def test_encodings_in_the_form_of_onnx(tmp_path: Path) -> None:
    rows = [
        {"name": "image", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 4},
        {"name": "hidden", "output_dtype": "int8", "y_scale": 0.25},
        {"name": "w1", "output_dtype": "int8", "y_scale": [0.1, 0.2], "axis": 0},
        {"name": "half", "output_dtype": "float16"},
    ]
    data = {"version": "2.0.0", "encodings": rows}
    found = read_ranges(written(tmp_path, json.dumps(data)))
    assert found.ranges == {"image": (-2, 125.5), "hidden": (-32, 31.75)}


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("", "no file of ranges", None),
        ("TRT-8601\nx: 3c010204", "no file of ranges", None),
        (HEAD, "names no range", None),
        (HEAD + "x: 3c01020z", "hexadecimal scale", "line 2"),
        (HEAD + "x: 3c010204\nno number", "hexadecimal scale", "line 3"),
        (HEAD + "x: 7f800000", "its range", "line 2"),
        (HEAD + "x: bc010204", "its range", "line 2"),
        ("{", "not valid JSON", None),
        ('{"version": "0.6.1"}', "no activation_encodings", None),
        ('{"activation_encodings": {"x": [{"bitwidth": 8}]}}', "'scale' is missing", "tensor 'x'"),
        ('{"activation_encodings": {"x": [{"min": 1, "max": -1}]}}', "its range", "tensor 'x'"),
        ('{"activation_encodings": {"conv": {"input": {}}}}', "modules of torch", "tensor 'conv'"),
        ('{"activation_encodings": [{"bw": 8}]}', "has a name", "entry 0"),
        ('{"activation_encodings": {"x": [{"min": "a", "max": 1}]}}', "AIMET", "tensor 'x'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str, where: str | None) -> None:
    with pytest.raises(InputRefused, match=message) as caught:
        read_ranges(written(tmp_path, text))
    assert caught.value.exit_code == 5 and caught.value.where == where and caught.value.hint


def test_bytes_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "ranges"
    file.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputRefused, match="not text"):
        read_ranges(file)


def taken(tmp_path: Path, text: str) -> tuple[Any, list[str]]:
    """The statistics that the step writes for the network, and its warnings."""
    (tmp_path / "fused").mkdir()
    net(tmp_path / "fused")
    families = [{"int8": to_json(backend("tensorrt").rules(target("l4"), precision("int8")))}]
    (tmp_path / "out").mkdir()
    meta = perform(
        "given_ranges", {"graph": tmp_path / "fused", "ranges": written(tmp_path, text)},
        {"families": families}, tmp_path / "out", lambda what, fraction: None,
    )  # fmt: skip
    return load(tmp_path / "out" / STATISTICS), meta["warnings"]


def test_values_get_their_ranges_and_the_others_a_rule(tmp_path: Path) -> None:
    text = (
        HEAD + f"image: {hexadecimal(2 / 127)}\nactive: {hexadecimal(3 / 127)}\nhiden: 3c010204\n"
    )
    statistics, warnings = taken(tmp_path, text)
    image, active = statistics.value("image"), statistics.value("active")
    assert (image.low, image.high) == pytest.approx((-2, 2))
    assert (active.low, active.high) == pytest.approx((0, 3))  # the result of a Relu
    activation = precision("int8").activations
    assert activation is not None
    chosen = choose(image, activation, "mse")
    assert chosen.method == "given" and (chosen.low, chosen.high) == (image.low, image.high)
    assert "does not name it" in statistics.unbounded()["curve"]
    assert warnings[0] == "2 ranges are given by TensorRT, TRT-8601-EntropyCalibration2"
    assert "what reads them stays in floats: 'curve'" in warnings[1]
    assert "'hiden' (nearest 'hidden')" in warnings[2]


def test_a_file_of_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="names no value that is quantized") as caught:
        taken(tmp_path, HEAD + "imag: 3c010204\n")
    assert "nearest 'image'" in caught.value.message and "'active'" in str(caught.value.hint)


@pytest.mark.slow
def test_a_build_takes_the_ranges_and_needs_no_samples(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    model = net(tmp_path)
    scales = {"image": 4 / 127, "active": 3 / 127}
    lines = [f"{name}: {hexadecimal(scale)}\n" for name, scale in scales.items()]
    ranges = written(tmp_path, HEAD + "".join(lines))
    built = optkit.build(
        optkit.Request(str(model), ranges=str(ranges)), target="l4", out=tmp_path / "artifacts",
        recipe={"name": "net"}, workspace=Workspace(cache=tmp_path / "cache"),
    )  # fmt: skip
    report = json.loads((built.path / "report.json").read_text())
    rows = {row["node"]: row for row in report["quantization"]}
    precisions = [row["precision"] for row in rows.values()]
    assert precisions == ["int8", "int8", "fp16"]
    assert [row["method"] for row in rows.values()] == ["given", "given", None]
    kept = [row["reason"] for row in rows.values() if row["precision"] == "fp16"]
    assert "does not name it" in kept[0]
    candidate = graph.load(built.path / "model.onnx")
    found = [
        float(scale.reshape(())) for node in candidate.graph if node.op_type == QUANTIZE
        and (scale := graph.array(node.inputs[1])) is not None
    ]  # fmt: skip
    assert sorted(found) == pytest.approx(sorted(scales.values()), rel=1e-3)
