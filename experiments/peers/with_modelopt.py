"""NVIDIA ModelOpt's ONNX quantization on a CPU.

options: mode (int8, fp8, int4), method (max, entropy, awq_clip, rtn_dq ...), samples, carrier (fp32
or fp16: the type of what stays in float), ops (op types to quantize; default: ModelOpt's choice).
"""

from __future__ import annotations

import numpy as np
from adapter import Job, main
from modelopt.onnx.quantization import quantize as modelopt


def quantize(job: Job) -> None:
    rows = job.calibration()
    carrier = job.options.get("carrier", "fp32")
    modelopt(
        str(job.source),
        quantize_mode=job.options["mode"],
        calibration_method=job.options["method"],
        calibration_data={name: np.concatenate([row[name] for row in rows]) for name in rows[0]},
        calibration_eps=["cpu"],
        output_path=str(job.model),
        high_precision_dtype=carrier,
        **({"op_types_to_quantize": job.options["ops"]} if "ops" in job.options else {}),
    )


if __name__ == "__main__":
    main(quantize)
