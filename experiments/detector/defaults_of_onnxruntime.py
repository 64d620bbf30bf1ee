"""ONNX Runtime's quantizers as they are called without options.

An adapter like those of experiments/peers, whose arguments it has. options: method "static" |
"dynamic"; samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

from adapter import Job, main
from onnxruntime.quantization import quantize_dynamic, quantize_static
from with_onnxruntime import Reader


def quantize(job: Job) -> None:
    if job.options["method"] == "dynamic":
        quantize_dynamic(job.source, job.model)
    else:
        quantize_static(job.source, job.model, Reader(job))


if __name__ == "__main__":
    main(quantize)
