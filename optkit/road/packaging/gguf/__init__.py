"""The format `gguf`: a decoder in one file for llama.cpp, Ollama and LM Studio.

<name>-<type>.gguf   weights, sizes, tokenizer and chat template

llama.cpp has a network of its own for each family; it gets the artifact's numbers. Codes are
carried over bit by bit where a type of GGML has the same blocks (`blocks`). Names, types and
metadata are those of llama.cpp's `convert_hf_to_gguf.py`; the package gguf writes them.

blocks      the type of GGML that holds a weight, and its bytes
network     sizes, and rows in the order in which llama.cpp rotates
vocabulary  tokenizer.json as llama.cpp's tokenizer, with `tokenizer_file`, `sentencepiece` and
            `sentencepiece_model`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.facts.errors import ToolchainMissing
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.road.packaging.decoders import Architecture, Parameter, caveats, parameters
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.variants import PackageSubject

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

    from optkit.road.packaging.gguf.blocks import GgmlStorage


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (a fleet, another family, a graph or tokenizer that llama.cpp has no form
    for), InputRefused (config.json, tokenizer.json), ToolchainMissing (the package gguf)."""
    artifact = subject.only("gguf").artifact
    _check_library()
    from gguf import GGUFWriter

    from optkit.road.packaging.gguf import network, vocabulary

    architecture = Architecture.of(artifact)
    vocabulary_of_model = vocabulary.read(artifact.path, architecture.vocabulary)
    found = parameters(graph.load(artifact.model_path), architecture)
    network.check_biases(architecture, found)
    file = scratch / "model.gguf"
    writer = GGUFWriter(file, network.name(architecture), use_temp_file=True)
    network.describe(writer, architecture)
    vocabulary_of_model.write(writer, artifact.path)
    _describe(writer, subject.name, artifact)
    stored = _add_tensors(writer, architecture, found)
    kind = _most_frequent(stored)
    writer.add_file_type(network.FILE_TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    notes = _notes(artifact, architecture, stored)
    return PackageContent({f"{subject.name}-{kind.name}.gguf": file}, notes)


def _check_library() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ToolchainMissing(
            f"gguf does not load: {error}", hint="pip install 'optkit[gguf]'"
        ) from error


def _describe(writer: GGUFWriter, name: str, artifact: Artifact) -> None:
    from gguf import GGML_QUANT_VERSION

    manifest = artifact.manifest
    writer.add_type("model")
    writer.add_name(name)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    for key in ("target", "precision", "digest"):
        writer.add_string(f"optkit.build.{key}", str(getattr(manifest, key)))


def _add_tensors(
    writer: GGUFWriter, architecture: Architecture, found: Mapping[str, Parameter]
) -> dict[str, GgmlStorage]:
    """Write the parameters, one at a time, and return how each is stored (without its bytes)."""
    from optkit.road.packaging.gguf import blocks, network

    stored: dict[str, GgmlStorage] = {}
    for name, tensor in network.extra(architecture).items():
        writer.add_tensor(name, tensor)
    for hf_name, parameter in network.written(architecture, found).items():
        name = network.tensor_name(architecture, hf_name)
        numbers = network.in_rotated_order(architecture, hf_name, parameter.read())
        data, stored[name] = blocks.store(numbers)
        writer.add_tensor(name, data, raw_dtype=stored[name].kind)
    return stored


def _most_frequent(stored: Mapping[str, GgmlStorage]) -> GGMLQuantizationType:
    """The type of most of the numbers."""
    count: Counter[GGMLQuantizationType] = Counter()
    for each in stored.values():
        count[each.kind] += each.numbers
    return count.most_common(1)[0][0]


def _notes(
    artifact: Artifact, architecture: Architecture, stored: Mapping[str, GgmlStorage]
) -> tuple[str, ...]:
    kinds = Counter(each.kind.name for each in stored.values())
    notes = [
        "types of the tensors: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    ]
    rounded = [each.rounding for each in stored.values() if each.codes and each.rounding]
    if rounded:
        notes.append(
            "codes are those of the artifact; their scales and minima are rounded to FP16, as GGUF "
            f"stores them, which changes them by at most {max(rounded):.1e} of a tensor's largest "
            "scale"
        )
    loose = [name for name, each in stored.items() if each.loosened]
    if loose:
        notes.append(
            f"{len(loose)} quantized tensors are stored as floats ({loose[0]}, …): no type of GGML "
            "has their codes or blocks"
        )
    return (*notes, *caveats(artifact, architecture, "llama.cpp"))
