"""Which tool quantized a graph: from its metadata, its domains, and the names that tools give."""

from __future__ import annotations

import re

import onnx_ir as ir

from optkit.craft.foreign.qdq_parameters import QUANTIZE, is_pair
from optkit.facts.documents.given_graph import Quantizer
from optkit.ground import graph

_OLIVE = "olive_version"
_ORT = "ONNX Runtime's quantizer"
_BY_METADATA = (
    (r"onnx\.quantize", _ORT),
    (r"onnx_neural_compressor|neural.?compressor", "Neural Compressor"),
    (r"modelopt", "ModelOpt"),
    (r"nncf", "NNCF"),
    (r"aimet", "AIMET"),
    (r"brevitas", "Brevitas"),
)
_BY_DOMAIN = (
    (r"qonnx|finn|onnx\.brevitas", "Brevitas (QONNX)"),
    (r"quark", "AMD Quark"),
    (r"^trt$|tensorrt", "ModelOpt"),
    (r"aimet", "AIMET"),
)
# a pattern of the names of Q/DQ nodes and of the values that they read, and its tool
_BY_NAME = (
    (r"nncf|^scale_.+_\d+$", "NNCF"),
    (r"quantized_decomposed|quantize_per_(tensor|channel)|torchao", "PyTorch pt2e"),
    (r"quant_proxy|_quant/export_handler|export_handler", "Brevitas"),
    (r"(input|weight)_quantizer", "ModelOpt"),
    (r"aimet|_qdq$|_updated|_qc_?quantize", "AIMET"),
    (r"_(Quantize|Dequantize)Linear(_Input)?(_\d+)?$|_(quantized|quant)$", _ORT),
)


def producer_of(model: ir.Model) -> Quantizer:
    """The tool that quantized the graph, as far as the file tells."""
    told = f"the producer's name is {model.producer_name or ''!r}"
    if (olive := model.metadata_props.get(_OLIVE)) is not None:  # it calls other quantizers
        return Quantizer("Olive", olive, f"the metadata has {_OLIVE}")
    found = _by_metadata(model, told) or _by_domain(model) or _by_names(model)
    return found or Quantizer("unknown", None, told)


def _by_metadata(model: ir.Model, told: str) -> Quantizer | None:
    """The tool that the producer's name or the metadata contain."""
    metadata = " ".join(f"{key}={value}" for key, value in model.metadata_props.items())
    for pattern, name in _BY_METADATA:
        if re.search(pattern, model.producer_name or "", re.IGNORECASE):
            copy = _with_a_copy(model, told) if name == _ORT else None
            return copy or Quantizer(name, model.producer_version or None, told)
        if (match := re.search(pattern, metadata, re.IGNORECASE)) is not None:
            return Quantizer(name, None, f"the metadata contains {match[0]!r}")
    return None


def _with_a_copy(model: ir.Model, told: str) -> Quantizer | None:
    """The tool with a copy of ONNX Runtime's quantizer that wrote the graph under its name."""
    if _quantizes_float_weights(model):
        return Quantizer("ModelOpt", None, f"{told}, and its weights are stored as floats")
    if (node := _named_after_reader(model)) is not None:
        why = f"{told}, and pairs are named after their readers, e.g. {node!r}"
        return Quantizer("Neural Compressor", None, why)
    return None


def _by_domain(model: ir.Model) -> Quantizer | None:
    for pattern, name in _BY_DOMAIN:
        for domain in model.opset_imports:
            if re.search(pattern, domain, re.IGNORECASE):
                return Quantizer(name, None, f"operators of the domain {domain!r}")
    return None


def _quantizes_float_weights(model: ir.Model) -> bool:
    """Whether a QuantizeLinear reads a constant. ModelOpt, which contains a copy of ONNX Runtime's
    quantizer, writes weights so; ONNX Runtime does it only with AddQDQPairToWeight."""
    return any(
        node.op_type == QUANTIZE and graph.is_constant(node.inputs[0]) for node in model.graph
    )


def _named_after_reader(model: ir.Model) -> str | None:
    """The name of a QuantizeLinear that has the form VALUE_READER_QuantizeLinear. Neural Compressor
    writes it, which also has a copy of ONNX Runtime's quantizer; that one writes
    VALUE_QuantizeLinear."""
    for node in model.graph:
        source = node.inputs[0] if node.op_type == QUANTIZE else None
        if source is None or source.name is None or node.name is None:
            continue
        if re.fullmatch(rf"{re.escape(source.name)}_.+_{QUANTIZE}", node.name):
            return node.name
    return None


def _by_names(model: ir.Model) -> Quantizer | None:
    """The tool whose names most Q/DQ nodes have."""
    counts: dict[str, tuple[int, str]] = {}
    for node in model.graph.all_nodes():
        if not is_pair(node):
            continue
        texts = [str(node.name), *(str(value.name) for value in node.inputs if value is not None)]
        for pattern, name in _BY_NAME:
            matching = [text for text in texts if re.search(pattern, text)]
            if matching:
                count, _ = counts.get(name, (0, ""))
                counts[name] = (count + 1, matching[0])
                break
    if not counts:
        return None
    name = max(counts, key=lambda one: counts[one][0])
    count, example = counts[name]
    return Quantizer(name, None, f"the names of {count} Q/DQ nodes, e.g. {example!r}")
