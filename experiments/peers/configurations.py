"""Who quantizes what, and how: every row of the tables, as data.

Each peer stands here in the configuration that was best for it on that workload, and in those
that users get by default where the difference matters. `options` go to the peer's adapter
(with_PEER.py) as they are; "samples" are calibration samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    title: str
    metric: str  # the one of score.py that the task is judged by
    batches: tuple[int, int]  # of the latency runs


WORKLOADS = {
    "w1": Workload("CNN: ResNet-like, 2.8 M parameters, digits at 32×32", "accuracy", (1, 32)),
    "w2": Workload("ViT: 6 layers of 192, digits at 32×32", "accuracy", (1, 32)),
    "w3": Workload("Masked encoder: BERT-like, 6 layers of 384, padded text", "accuracy", (1, 8)),
    "w4": Workload("Decoder: Llama-like, 8 layers of 320, BPE 2048", "perplexity", (1, 8)),
    "w5": Workload("ResNet-50, random weights, digits at 224×224", "cosine", (1, 8)),
    "w6": Workload("BERT-base, random weights, padded text", "cosine", (1, 8)),
}


@dataclass(frozen=True)
class Configuration:
    """`runs`: the CPU runs it, so it is timed. `lands`: it is compiled for TensorRT-RTX.
    `session`: ONNX Runtime options without which the graph does not load."""

    workload: str
    peer: str
    name: str
    options: dict[str, Any]
    group: str = "int8"  # the table it stands in
    runs: bool = True
    lands: bool = True
    session: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.peer}-{self.name}"


OFF = {"level": "ORT_DISABLE_ALL"}  # higher levels damage the FP16 graph (10 dB)
BASIC = {"level": "ORT_ENABLE_BASIC"}  # higher levels fuse FP8 into operators that only know INT8


def _ort(workload: str, name: str, group: str = "int8", **options: Any) -> Configuration:
    return Configuration(workload, "onnxruntime", name, options, group)


def _modelopt(workload: str, name: str, samples: int, **options: Any) -> Configuration:
    """ModelOpt's graphs are for TensorRT; on the CPU the FP32 ones run too."""
    fp8 = options["mode"] == "fp8"
    return Configuration(
        workload,
        "modelopt",
        name,
        {"method": "max", "samples": samples, **options},
        group="fp8" if fp8 else "int4" if options["mode"] == "int4" else "int8",
        runs=not fp8 and "carrier" not in options,
        session=BASIC if fp8 else OFF if "carrier" in options else {},
    )


def _optkit(
    workload: str, name: str, *overrides: str, precision: str = "int8", target: str = "cpu"
) -> Configuration:
    """`overrides`: what `--set` adds to recipes/<workload>.yaml."""
    options = {"target": target, "precision": precision, "set": list(overrides)}
    group = precision if precision in ("int4", "fp8") else "int8"
    on_cpu = target == "cpu"
    session = {} if on_cpu else OFF  # scored as written, like the peers' FP16 graphs
    return Configuration(
        workload, "optkit", name, options, group, runs=on_cpu, lands=not on_cpu, session=session
    )


_FAST = "quantization.effort=fast"
# W3's second matrices of the feed-forward blocks: what costs most in 8 bits
_DOWN = ",".join(f"node_MatMul_{number}" for number in (110, 176, 242, 308, 374, 440))
_OLIVE_U8S8 = {"activation_type": "uint8", "precision": "int8", "per_channel": True}

CONFIGURATIONS: tuple[Configuration, ...] = (
    # W1
    _ort("w1", "static", method="static", samples=256),
    _modelopt("w1", "int8", 256, mode="int8"),
    _modelopt("w1", "int8-fp16", 256, mode="int8", carrier="fp16"),
    _modelopt("w1", "fp8", 256, mode="fp8"),
    Configuration("w1", "olive", "static", {
        "pass": "OnnxStaticQuantization", "samples": 256, "config": _OLIVE_U8S8}),
    Configuration("w1", "nncf", "default", {"samples": 256}),
    _optkit("w1", "int8"),
    _optkit("w1", "int8-fast", _FAST),
    _optkit("w1", "int8-l4", target="l4"),
    _optkit("w1", "fp8-l4", target="l4", precision="fp8"),
    # W2
    _ort("w2", "dynamic", method="dynamic", preprocess=True),
    _ort("w2", "static-all", method="static", samples=256),
    _ort("w2", "static-const", method="static", samples=256, const_b_only=True),
    _modelopt("w2", "int8", 256, mode="int8"),
    _modelopt("w2", "fp8", 256, mode="fp8"),
    Configuration("w2", "olive", "dynamic", {"pass": "OnnxDynamicQuantization"}),
    Configuration("w2", "nncf", "transformer", {"samples": 256, "transformer": True}),
    _optkit("w2", "int8"),
    _optkit("w2", "int8-fast", _FAST),
    _optkit("w2", "int8-l4", target="l4"),
    _optkit("w2", "fp8-l4", target="l4", precision="fp8"),
    # W3
    _ort("w3", "dynamic", method="dynamic", preprocess=True),
    _ort("w3", "static-all", method="static", samples=128),
    _ort("w3", "static-const", method="static", samples=128, const_b_only=True),
    _modelopt("w3", "int8", 128, mode="int8"),
    _modelopt("w3", "int8-matmul", 128, mode="int8", ops=["MatMul", "Gemm"]),
    _modelopt("w3", "fp8", 128, mode="fp8"),
    Configuration("w3", "olive", "dynamic", {"pass": "OnnxDynamicQuantization"}),
    Configuration("w3", "nncf", "transformer", {"samples": 128, "transformer": True}),
    _optkit("w3", "int8", "calibration.samples=512"),
    _optkit("w3", "int8-128", "calibration.samples=128"),
    _optkit("w3", "int8-fast", "calibration.samples=128", _FAST),
    _optkit(
        "w3", "int8-two-term", "calibration.samples=512", f"quantization.two_term=[{_DOWN}]"
    ),
    _optkit("w3", "int8-l4", "calibration.samples=512", target="l4"),
    _optkit("w3", "fp8-l4", "calibration.samples=512", target="l4", precision="fp8"),
    # W4
    _ort("w4", "dynamic", method="dynamic", preprocess=True),
    _ort("w4", "static-all", method="static", samples=128),
    _ort("w4", "static-const", method="static", samples=128, const_b_only=True),
    _modelopt("w4", "int8", 128, mode="int8"),
    _modelopt("w4", "int8-matmul", 128, mode="int8", ops=["MatMul", "Gemm"]),
    _modelopt("w4", "fp8", 64, mode="fp8"),
    Configuration("w4", "olive", "dynamic", {"pass": "OnnxDynamicQuantization"}),
    Configuration("w4", "nncf", "transformer", {"samples": 128, "transformer": True}),
    _optkit("w4", "int8"),
    _optkit("w4", "int8-fast", _FAST),
    _optkit("w4", "int8-l4", target="l4"),
    _optkit("w4", "fp8-l4", target="l4", precision="fp8"),
    # W4 in 4 bits
    _ort("w4", "rtn-symmetric", "int4", method="blocks", algorithm="default", block=32,
         symmetric=True),
    _ort("w4", "rtn-asymmetric", "int4", method="blocks", algorithm="default", block=32,
         symmetric=False),
    _ort("w4", "hqq", "int4", method="blocks", algorithm="hqq", block=32),
    _ort("w4", "gptq", "int4", method="blocks", algorithm="gptq", block=32, samples=32),
    _ort("w4", "gptq-repaired", "int4", method="blocks", algorithm="gptq-repaired", block=32,
         samples=64),
    _modelopt("w4", "int4-awq-clip", 16, mode="int4", method="awq_clip"),
    _optkit("w4", "int4", "calibration.samples=32", precision="int4"),
    _optkit("w4", "int4-fast", "calibration.samples=32", _FAST, precision="int4"),
    # W5
    _ort("w5", "static", method="static", samples=32),
    _modelopt("w5", "int8", 32, mode="int8"),
    Configuration("w5", "olive", "static", {
        "pass": "OnnxStaticQuantization", "samples": 32, "config": _OLIVE_U8S8}),
    Configuration("w5", "nncf", "default", {"samples": 32}),
    _optkit("w5", "int8"),
    _optkit("w5", "int8-fast", _FAST),
    # W6
    _ort("w6", "dynamic", method="dynamic", preprocess=True),
    _ort("w6", "static-const", method="static", samples=32, const_b_only=True),
    _modelopt("w6", "int8-matmul", 32, mode="int8", ops=["MatMul", "Gemm"]),
    Configuration("w6", "olive", "dynamic", {"pass": "OnnxDynamicQuantization"}),
    Configuration("w6", "nncf", "transformer", {"samples": 32, "transformer": True}),
    _optkit("w6", "int8"),
    _optkit("w6", "int8-fast", _FAST),
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """One row of the calibration comparison, on W3: ranges of every tensor, nothing quantized."""

    peer: str
    name: str
    options: dict[str, Any]


_NO_MOMENTS = ["quantization.weights=rtn"]

CALIBRATIONS: tuple[Calibration, ...] = (
    Calibration("onnxruntime", "min-max", {
        "method": "calibrate", "observer": "MinMax", "samples": 128}),
    Calibration("onnxruntime", "entropy", {
        "method": "calibrate", "observer": "Entropy", "samples": 128}),
    *(
        Calibration("optkit", "any observer", {"samples": samples, "set": _NO_MOMENTS})
        for samples in (128, 512, 2048)
    ),
    Calibration("optkit", "and second moments", {"samples": 512}),  # which GPTQ needs
    Calibration("optkit", "FP32 alone", {"method": "forward", "samples": 512}),
)  # fmt: skip
