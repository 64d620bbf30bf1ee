"""NNCF's post-training quantization of an ONNX graph. options: samples, transformer (bool)."""

from __future__ import annotations

import nncf
import onnx
from adapter import Job, main


def quantize(job: Job) -> None:
    graph = onnx.load(job.source)
    dataset = nncf.Dataset(job.calibration())
    kind = {"model_type": nncf.ModelType.TRANSFORMER} if job.options.get("transformer") else {}
    onnx.save(nncf.quantize(graph, dataset, subset_size=job.samples, **kind), job.model)


if __name__ == "__main__":
    main(quantize)
