"""The format `compressed-tensors`: a checkpoint for vLLM, SGLang and transformers.

model.safetensors          weights under the names of the Hugging Face model; codes in the form of
                           compressed-tensors; several files and an index above 5 GiB
config.json, tokenizer …   those of the model, with `quantization_config`
hf_quant_config.json       for TensorRT-LLM and ModelOpt, if they know the scheme
README.md                  the card: every figure of the artifact with its evidence

The readers have a network of their own for each family; it gets the artifact's numbers, and its
scales of inputs. Codes and scales are carried over bit by bit.

schemes           the form of a linear layer's codes
fp8_cache         the scales of a key-value cache in FP8
kept_parameters   the parameters of the model
config            config.json
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft.sources.hugging_face.network_layout import NetworkLayout, network_layout
from optkit.facts.errors import UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import CONFIG, Decoder
from optkit.ground.intake import COMPANIONS
from optkit.road.packaging import checkpoint_card
from optkit.road.packaging.compressed_tensors import config
from optkit.road.packaging.compressed_tensors.fp8_cache import SCHEME, cache_scales
from optkit.road.packaging.compressed_tensors.kept_parameters import KeptParameters, kept_parameters
from optkit.road.packaging.compressed_tensors.schemes import LinearScheme, Tensors, store
from optkit.road.packaging.decoders import Parameter, check_others, parameters, quantized_input
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.shards import ShardWriter
from optkit.road.packaging.variants import PackageSubject

_CARD = checkpoint_card.CardWords(
    library="transformers",
    tags=("compressed-tensors",),
    form="the form of compressed-tensors",
    use="""\
```python
from transformers import AutoModel  # or the Auto class of its task; needs compressed-tensors

model = AutoModel.from_pretrained(".")
```""",
    remark="Other programs compute floats in their own way, and nothing was measured with them.",
)
_CACHE_IN_FP8 = (
    "it has scales for a key-value cache in FP8, which vLLM and transformers then keep by default; "
    "the accuracy of the artifact, whose cache has floats, was not evaluated for it"
)
_FLOAT_EXPERTS = (
    "transformers 5.23 does not load experts in floats beside codes of another kind than FP8; for "
    "other readers they are in `ignore`"
)


@dataclass
class _Stored:
    """How the parameters are stored. `by_token`: inputs get their scales at run time. `loosened`,
    `routers`: embeddings and routers whose codes are stored as the numbers that they stand for."""

    by_token: bool
    schemes: dict[str, LinearScheme] = field(default_factory=dict)
    loosened: list[str] = field(default_factory=list)
    routers: list[str] = field(default_factory=list)


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (a fleet, no Hugging Face model, what the checkpoint or its format has no
    place for), InputRefused (config.json), ToolchainMissing (compressed-tensors, transformers)."""
    artifact = subject.only("compressed-tensors").artifact
    _check(artifact)
    config.check_library()
    layout = network_layout(artifact.path, _of_model(artifact, "task"))
    model = graph.load(artifact.model_path)
    found = parameters(model, layout)
    products = {each.product for each in found.values() if each.product is not None}
    _check_tables(products)
    check_others(model, products)
    kept = kept_parameters(layout, found)
    dtype = _dtype(layout, found)
    stored = _Stored(subject.dynamic)
    shards = ShardWriter(scratch, "pt")
    for name, parameter in kept.written.items():
        shards.add(_tensors(name, parameter, layout, dtype, stored))
    if not stored.schemes:
        raise _no_codes(artifact)
    _check_dynamic(subject, stored)
    cache = cache_scales(artifact, layout.attentions)
    for name, scale in cache.items():
        shards.add({name: scale})
    schemes, floats = _targets(stored, layout)
    quantization = config.quantization(schemes, floats, layout.head, SCHEME if cache else None)
    described = config.config(artifact.path, layout.network, quantization, dtype, kept.tied)
    notes = (
        *_notes(stored, products, kept),
        *([_FLOAT_EXPERTS] if _has_float_experts(schemes, floats) else []),
        *([_CACHE_IN_FP8] if cache else []),
    )
    companions = {n: artifact.path / n for n in COMPANIONS if n in artifact.manifest.files}
    card = checkpoint_card.text(subject, "compressed-tensors", _CARD, None, notes)
    content = {**companions, **shards.files(), CONFIG: described, "README.md": card}
    known = config.of_modelopt(schemes, floats, cache=bool(cache))
    if known is not None:
        content["hf_quant_config.json"] = known
    return PackageContent(content, notes)


def _check(artifact: Artifact) -> None:
    """Raises UsageError for what no checkpoint of this format holds."""
    where, manifest = str(artifact.path), artifact.manifest
    decoder = Decoder.of(manifest.inputs, manifest.outputs)
    if _of_model(artifact, "part") is not None or (decoder is not None and decoder.crossed):
        raise UsageError(
            "it is one of the two graphs of an encoder-decoder, whose checkpoint holds both",
            where=where,
            hint="choose another format: oci and slim hold it",
        )
    if decoder is not None and decoder.codes is not None:
        raise UsageError(
            f"its key-value cache in {decoder.codes} has a scale for each channel, and the format "
            "has one for each tensor or head",
            where=where,
            hint="build it with `--set quantization.kv_cache=null`, or `=fp8` for the scales of a "
            "cache in FP8",
        )
    if CONFIG not in manifest.files:
        raise UsageError(
            "it has no config.json: the format holds Hugging Face models",
            where=where,
            hint="choose another format: huggingface, oci and slim hold this model too",
        )


def _of_model(artifact: Artifact, key: str) -> str | None:
    """What the recipe says of the model."""
    model = artifact.manifest.recipe.get("model")
    said = model.get(key) if isinstance(model, dict) else None
    return said if isinstance(said, str) else None


def _check_tables(products: Iterable[ir.Node]) -> None:
    for node in products:
        if node.op_type == "MatMulBnb4":
            raise UsageError(
                "its weight is in nf4, a table of quantiles, which compressed-tensors has not",
                where=f"node {node.name!r}",
                hint="build it in int4",
            )


def _no_codes(artifact: Artifact) -> UsageError:
    precision = PRECISIONS.get(artifact.manifest.precision)
    return UsageError(
        "no linear layer has codes"
        if precision is None or precision.quantized
        else f"{precision} quantizes nothing: its checkpoint is the folder of the model",
        where=str(artifact.path),
        hint="build it in int4, int8-weight-only, int8, fp8 or nvfp4",
    )


def _check_dynamic(subject: PackageSubject, stored: _Stored) -> None:
    """Raises UsageError if there is no input whose scale could be computed at run time."""
    if subject.dynamic and not any(map(_is_by_token, stored.schemes.values())):
        raise UsageError(
            "no linear layer has a constant scale for its inputs, which a scale for each token "
            "would replace",
            where="--dynamic",
            hint="leave it out, or build the artifact in int8 or fp8",
        )


def _is_by_token(scheme: LinearScheme) -> bool:
    return scheme.inputs is not None and scheme.inputs.dynamic is True


def _dtype(layout: NetworkLayout, found: Mapping[str, Parameter]) -> np.dtype[np.generic]:
    """That of the numbers which an embedding gives."""
    for name in layout.embedded:
        held = found[name].stored()
        return (held if isinstance(held, np.ndarray) else held.scales).dtype
    return np.dtype(np.float32)


def _tensors(
    name: str,
    parameter: Parameter,
    layout: NetworkLayout,
    dtype: np.dtype[np.generic],
    stored: _Stored,
) -> Tensors:
    """What the checkpoint has for a parameter."""
    held = parameter.stored()
    if name in layout.linear and not isinstance(held, np.ndarray):
        assert parameter.product is not None
        module = name.removesuffix(".weight")
        tensors, stored.schemes[module] = store(
            module, held, quantized_input(parameter.product), by_token=stored.by_token
        )
        return tensors
    if not isinstance(held, np.ndarray):
        (stored.routers if name in layout.mixtures.routers else stored.loosened).append(name)
        held = held.numbers()
    if held.dtype != dtype:
        cast = held.astype(dtype)
        if np.array_equal(cast.astype(np.float32), held.astype(np.float32)):
            held = cast
    return {layout.mixtures.renamed.get(name, name): np.ascontiguousarray(held)}


def _targets(stored: _Stored, layout: NetworkLayout) -> tuple[dict[str, LinearScheme], set[str]]:
    """The schemes, and what stays in floats, by the names of a configuration: that of a module, or
    a pattern for all experts of a mixture. Raises UsageError if these have several schemes."""
    places = layout.mixtures.places()
    patterns = {name: f"re:{re.escape(place)}[.].*" for name, place in places.items()}
    schemes: dict[str, LinearScheme] = {}
    for module, scheme in stored.schemes.items():
        if schemes.setdefault(patterns.get(module, module), scheme) != scheme:
            raise _several_schemes(places[module])
    linear = {name.removesuffix(".weight") for name in layout.linear}
    floats = {patterns.get(name, name) for name in linear - stored.schemes.keys()}
    if both := floats & schemes.keys():
        raise _several_schemes(min(both))
    renamed = layout.mixtures.renamed
    routers = {renamed[name].removesuffix(".weight") for name in layout.mixtures.routers}
    return schemes, floats | routers


def _has_float_experts(schemes: Mapping[str, LinearScheme], floats: set[str]) -> bool:
    """Whether a mixture is in floats, and other layers are not in FP8."""
    kinds = {(scheme.weights.kind, scheme.weights.bits) for scheme in schemes.values()}
    return any(name.startswith("re:") for name in floats) and kinds != {("float", 8)}


def _several_schemes(mixture: str) -> UsageError:
    return UsageError(
        "the matrices of its experts have several forms, and readers take one for all of them",
        where=f"module {mixture!r}",
        hint="build both products in one precision, such as `quantization: {nodes: "
        '{"*experts*": int4}}`, with a `block_size` that is below both widths and divides them',
    )


def _notes(stored: _Stored, products: Iterable[ir.Node], kept: KeptParameters) -> tuple[str, ...]:
    counts = Counter(map(str, stored.schemes.values()))
    notes = [f"linear layers with {scheme}: {count}" for scheme, count in counts.most_common()]
    if stored.by_token:
        notes.append(
            "inputs get a scale for each token at run time: the accuracy of the artifact, whose "
            "scales of inputs are constant, was not evaluated for it"
        )
    if stored.loosened:
        notes.append(
            f"the 8-bit codes of {', '.join(stored.loosened)} are stored as the numbers that they "
            "stand for: readers have no embedding of codes"
        )
    if stored.routers:
        notes.append(
            f"{len(stored.routers)} routers have codes in the artifact, and here the numbers that "
            "these stand for, with inputs in floats: readers have routers in floats"
        )
    if kept.tied is False:
        notes.append(
            "the last layer and the embedding are one parameter in the model, and two here: they "
            "have other codes"
        )
    if any(not scheme.weights.symmetric for scheme in stored.schemes.values()):
        notes.append(
            "transformers 5.23 loads weights with zero points only with "
            "CompressedTensorsConfig(dequantize=True), and only if all layers have one scheme"
        )
    rounded = sum(map(_rounds, products))
    if rounded:
        notes.append(
            f"inside {rounded} products, the kernel of ONNX Runtime also rounds activations to 8 "
            "bits in blocks; readers of this package do not"
        )
    return tuple(notes)


def _rounds(product: ir.Node) -> bool:
    """Whether the kernel rounds activations: as its level says, and for experts of 8 bits."""
    number = product.attributes.get_int
    return number("accuracy_level", 0) == 4 or number("expert_weight_bits", 0) == 8
