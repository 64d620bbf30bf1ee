"""ONNX Runtime's quantizers with their defaults: python peer.py static|dynamic IN CALIB OUT"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from keeping import rows
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static


class Reader(CalibrationDataReader):
    def __init__(self, path: str, inputs: set[str]) -> None:
        self.rows = iter([{name: row[name] for name in inputs} for row in rows(Path(path))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


def main() -> None:
    method, source, calibration, out = sys.argv[1:]
    if method == "dynamic":
        quantize_dynamic(source, out)
        return
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    reader = Reader(calibration, {info.name for info in session.get_inputs()})
    quantize_static(source, out, reader)


if __name__ == "__main__":
    main()
