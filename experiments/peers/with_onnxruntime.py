"""ONNX Runtime's own quantizers: static, dynamic, and 4-bit blocks (default, HQQ, GPTQ).

options: method "static" | "dynamic" | "blocks" | "calibrate"; samples; preprocess (run
`quant_pre_process` first); const_b_only (quantize MatMuls with a constant weight alone); symmetric,
algorithm (default, hqq, gptq, gptq-repaired) and block of 4-bit weights.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import onnx
from adapter import Job, main
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    create_calibrator,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process


class Reader(CalibrationDataReader):
    def __init__(self, job: Job) -> None:
        self.feeds = job.calibration()
        self.rewind()

    def get_next(self) -> dict | None:
        return next(self.rows, None)

    def rewind(self) -> None:
        self.rows = iter(self.feeds)

    def __len__(self) -> int:
        return len(self.feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.rows = iter(self.feeds[start_index:end_index])


def quantize(job: Job) -> dict[str, Any] | None:
    source = job.source
    if job.options.get("preprocess"):
        source = job.out / "preprocessed.onnx"
        preprocess(job.source, source)
    method = {"static": static, "dynamic": dynamic, "blocks": blocks, "calibrate": calibrate}
    found = method[job.options["method"]](job, source)
    if source != job.source:
        source.unlink()
    return found


def preprocess(exported: Path, made: Path) -> None:
    """ORT's own preparation, around two faults: dynamo exports carry shapes that its inference
    contradicts, and its symbolic inference dies on them ("object of type 'NoneType'")."""
    graph = onnx.load(exported)
    del graph.graph.value_info[:]
    onnx.save(graph, made)
    quant_pre_process(str(made), str(made), skip_symbolic_shape=True)


def static(job: Job, source: Path) -> None:
    """u8 activations, s8 per-channel weights: the fast kernels of an x86 CPU."""
    const_b_only = bool(job.options.get("const_b_only"))
    quantize_static(
        str(source),
        str(job.model),
        Reader(job),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        calibrate_method=CalibrationMethod[job.options.get("observer", "MinMax")],
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm", "Conv"] if const_b_only else None,
        extra_options={"MatMulConstBOnly": True} if const_b_only else {},
    )


def dynamic(job: Job, source: Path) -> None:
    quantize_dynamic(str(source), str(job.model), weight_type=QuantType.QInt8, per_channel=True)


def blocks(job: Job, source: Path) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    algorithm, block = job.options["algorithm"], int(job.options["block"])
    graph = onnx.load(source)
    if algorithm == "hqq":
        config = nbits.HQQWeightOnlyQuantConfig(block_size=block, bits=4)
        quantizer = nbits.MatMulNBitsQuantizer(graph, algo_config=config)
    elif algorithm.startswith("gptq"):
        if algorithm == "gptq-repaired":
            repair_gptq()
        config = nbits.GPTQWeightOnlyQuantConfig(calibration_data_reader=Reader(job))
        quantizer = nbits.MatMulNBitsQuantizer(graph, block_size=block, algo_config=config)
    else:
        symmetric = bool(job.options["symmetric"])
        quantizer = nbits.MatMulNBitsQuantizer(
            graph, bits=4, block_size=block, is_symmetric=symmetric
        )
    quantizer.process()
    quantizer.model.save_model_to_file(str(job.model), use_external_data_format=False)


def repair_gptq() -> None:
    """Take the transpose out of ORT's factor of the inverse Hessian, in memory.

    As shipped (1.31.1) `np.linalg.cholesky(inv(H)).T` is read by columns, of which it has only the
    diagonal, so no error is ever propagated and its codes are those of rounding.
    """
    from onnxruntime.quantization.neural_compressor import weight_only

    shipped = inspect.getsource(weight_only.gptq)
    repaired = shipped.replace(
        "np.linalg.cholesky(np.linalg.inv(H)).T", "np.linalg.cholesky(np.linalg.inv(H))"
    )
    if repaired == shipped:
        raise RuntimeError("this ONNX Runtime has another GPTQ: nothing to repair")
    exec(compile(repaired, weight_only.__file__, "exec"), vars(weight_only))


def calibrate(job: Job, source: Path) -> dict[str, Any]:
    """Calibration alone: every tensor's range, as quantize_static would find it."""
    calibrator = create_calibrator(
        str(source),
        None,
        augmented_model_path=str(job.out / "augmented.onnx"),
        calibrate_method=CalibrationMethod[job.options["observer"]],
    )
    calibrator.collect_data(Reader(job))
    found = calibrator.compute_data()
    return {"tensors": len(found.data)}


if __name__ == "__main__":
    main(quantize)
