"""Quantize one network with one tool, in the environment of the tool.

python experiments/foreign/produce.py PRODUCER NETWORK FLOAT.onnx OUT.onnx
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import networks
import numpy as np
import onnx


def _feeds(name: str) -> list[dict[str, np.ndarray]]:
    return [{"x": row[None]} for row in networks.samples(name, networks.CALIBRATION, 1)]


def _ort_static(name: str, source: Path, out: Path, form: str, symmetric: bool) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(_feeds(name))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    quantize_static(
        source, out, Reader(), quant_format=QuantFormat[form], per_channel=True,
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": True},
    )  # fmt: skip


def ort_qdq(name: str, source: Path, out: Path) -> None:
    _ort_static(name, source, out, "QDQ", symmetric=False)


def ort_qdq_symmetric(name: str, source: Path, out: Path) -> None:
    _ort_static(name, source, out, "QDQ", symmetric=True)


def ort_qoperator(name: str, source: Path, out: Path) -> None:
    _ort_static(name, source, out, "QOperator", symmetric=False)


def ort_dynamic(name: str, source: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, out, weight_type=QuantType.QInt8)


def nncf(name: str, source: Path, out: Path) -> None:
    import nncf as tool

    kind = {"model_type": tool.ModelType.TRANSFORMER} if name == "block" else {}
    onnx.save(tool.quantize(onnx.load(source), tool.Dataset(_feeds(name)), **kind), out)


def modelopt(name: str, source: Path, out: Path) -> None:
    from modelopt.onnx.quantization import quantize

    quantize(
        str(source), quantize_mode="int8", calibration_method="max",
        calibration_data={"x": networks.samples(name, networks.CALIBRATION, 1)},
        calibration_eps=["cpu"], output_path=str(out), high_precision_dtype="fp32",
    )  # fmt: skip


def modelopt_fp8(name: str, source: Path, out: Path) -> None:
    from modelopt.onnx.quantization import quantize

    quantize(
        str(source), quantize_mode="fp8", calibration_method="max",
        calibration_data={"x": networks.samples(name, networks.CALIBRATION, 1)},
        calibration_eps=["cpu"], output_path=str(out), high_precision_dtype="fp32",
    )  # fmt: skip


def pt2e(name: str, source: Path, out: Path) -> None:
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    rows = torch.from_numpy(networks.samples(name, networks.CALIBRATION, 1))
    batch = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(networks.module(name), (rows[:2],), dynamic_shapes=batch)
    asked = get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(exported.module(), XNNPACKQuantizer().set_global(asked))
    prepared(rows)
    networks.export(convert_pt2e(prepared), name, out)


def brevitas(name: str, source: Path, out: Path) -> None:
    import torch
    from brevitas.export import export_onnx_qcdq
    from brevitas.graph.calibrate import calibration_mode
    from brevitas.graph.quantize import preprocess_for_quantize, quantize

    rows = torch.from_numpy(networks.samples(name, networks.CALIBRATION, 1))
    traced = torch.fx.symbolic_trace(networks.module(name))
    model = quantize(preprocess_for_quantize(traced))
    with torch.no_grad(), calibration_mode(model):
        model(rows)
    export_onnx_qcdq(
        model.eval(), rows[:1], export_path=str(out), input_names=["x"], output_names=["y"],
        opset_version=17, dynamo=False,
    )  # fmt: skip


def aimet(name: str, source: Path, out: Path) -> None:
    """AIMET: a graph with Q/DQ."""
    onnx.save(_aimet(name, source).to_onnx_qdq(), out)


def aimet_encodings(name: str, source: Path, out: Path) -> None:
    """AIMET: the float graph (`out`) and out.encodings beside it."""
    _aimet(name, source).export(str(out.parent), out.stem)


def _aimet(name: str, source: Path) -> object:
    from aimet_onnx.quantsim import QuantizationSimModel

    model = QuantizationSimModel(
        onnx.load(source),
        param_type="int8",
        activation_type="int8",
        providers=["CPUExecutionProvider"],
    )
    feeds = _feeds(name)
    model.compute_encodings(feeds)
    return model


def neural_compressor(name: str, source: Path, out: Path) -> None:
    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import config, quantize

    class Reader(data_reader.CalibrationDataReader):
        def __init__(self) -> None:
            self.rewind()

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

        def rewind(self) -> None:
            self.rows = iter(_feeds(name))

    quantize(str(source), str(out), config.StaticQuantConfig(calibration_data_reader=Reader()))


def olive(name: str, source: Path, out: Path) -> None:
    import torch
    from olive.data.config import DataConfig
    from olive.data.registry import Registry
    from olive.hardware.accelerator import DEFAULT_CPU_ACCELERATOR
    from olive.model import ONNXModelHandler
    from olive.package_config import OlivePackageConfig
    from olive.passes.olive_pass import create_pass_from_dict

    rows = [({"x": torch.from_numpy(feed["x"][0])}, 0) for feed in _feeds(name)]
    Registry.register_dataset("rows")(lambda **_: rows)
    data = DataConfig(
        name="rows", type="DataContainer", load_dataset_config={"type": "rows"},
        pre_process_data_config={"type": "skip_pre_process"},
        post_process_data_config={"type": "skip_post_process"},
        dataloader_config={"batch_size": 1},
    )  # fmt: skip
    kind = OlivePackageConfig.load_default_config().import_pass_module("OnnxStaticQuantization")
    chosen = create_pass_from_dict(
        kind, {"data_config": data}, disable_search=True, accelerator_spec=DEFAULT_CPU_ACCELERATOR
    )
    made = chosen.run(ONNXModelHandler(str(source)), str(out.with_suffix("")))
    onnx.save(onnx.load(made.model_path), out)


PRODUCERS: dict[str, Callable[[str, Path, Path], None]] = {
    one.__name__: one
    for one in (ort_qdq, ort_qdq_symmetric, ort_qoperator, ort_dynamic, nncf, modelopt,
                modelopt_fp8, pt2e, brevitas, aimet, aimet_encodings, neural_compressor, olive)
}  # fmt: skip

if __name__ == "__main__":
    producer, network, given, made = sys.argv[1:]
    PRODUCERS[producer](network, Path(given), Path(made))
