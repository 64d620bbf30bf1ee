"""A decoder as llama.cpp's network: names, sizes, rotary embeddings and the order of rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    RopeScalingType,
    get_tensor_name_map,
)

from optkit.craft.quantization.qdq.codes import Codes, same
from optkit.facts.errors import UsageError
from optkit.road.packaging.decoders import Architecture, Parameter
from optkit.road.packaging.decoders.architecture import EMBEDDING, HEAD

_NETWORKS = {
    "llama": MODEL_ARCH.LLAMA,
    "mistral": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
}
_QKV = ("q_proj", "k_proj", "v_proj")
# the biases that a network of llama.cpp loads (src/models, load_arch_tensors)
_BIASES = {
    MODEL_ARCH.LLAMA: (*_QKV, "o_proj", "gate_proj", "up_proj", "down_proj"),
    MODEL_ARCH.QWEN2: (*_QKV, HEAD),
    MODEL_ARCH.QWEN3: _QKV,
}
FILE_TYPES = {
    GGMLQuantizationType.F32: LlamaFileType.ALL_F32,
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.BF16: LlamaFileType.MOSTLY_BF16,
    GGMLQuantizationType.Q4_0: LlamaFileType.MOSTLY_Q4_0,
    GGMLQuantizationType.Q4_1: LlamaFileType.MOSTLY_Q4_1,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}


def name(architecture: Architecture) -> str:
    return str(MODEL_ARCH_NAMES[_NETWORKS[architecture.kind]])


def check_biases(architecture: Architecture, found: Mapping[str, Parameter]) -> None:
    """Raises UsageError for a bias that llama.cpp's network has no place for."""
    allowed = _BIASES[_NETWORKS[architecture.kind]]
    for parameter in found:
        module, _, kind = parameter.rpartition(".")
        if kind == "bias" and module.rpartition(".")[2] not in allowed:
            raise UsageError(
                f"{module} has a bias, and llama.cpp's network {name(architecture)} has none there",
                hint="if it corrects the error of quantization, build with "
                "`quantization: {bias_correction: false}`",
            )


def describe(writer: GGUFWriter, architecture: Architecture) -> None:
    """The sizes. Raises UsageError for rotary embeddings that the network cannot have."""
    writer.add_vocab_size(architecture.vocabulary)
    writer.add_context_length(architecture.positions)
    writer.add_embedding_length(architecture.hidden)
    writer.add_block_count(architecture.layers)
    writer.add_feed_forward_length(architecture.intermediate)
    writer.add_head_count(architecture.heads)
    writer.add_head_count_kv(architecture.kv_heads)
    writer.add_key_length(architecture.head_size)
    writer.add_value_length(architecture.head_size)
    writer.add_layer_norm_rms_eps(architecture.epsilon)
    writer.add_rope_dimension_count(architecture.head_size)
    writer.add_rope_freq_base(architecture.theta)
    rotation = architecture.rotation
    if rotation.kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rotation.factor)
    elif rotation.kind == "llama3" and _NETWORKS[architecture.kind] is not MODEL_ARCH.LLAMA:
        raise UsageError(
            f"its rotary embeddings are of the kind llama3, which llama.cpp's network "
            f"{name(architecture)} does not have"
        )


def extra(architecture: Architecture) -> dict[str, np.ndarray]:
    """Tensors that no parameter is: the divisors of rotary frequencies."""
    if architecture.rotation.kind != "llama3":
        return {}
    return {"rope_freqs.weight": architecture.divisors().astype(np.float32)}


def written(architecture: Architecture, found: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters to write, in order. Without a head llama.cpp takes the embedding, so a head
    with the same numbers is left out."""
    ordered = {f"{EMBEDDING}.weight": found[f"{EMBEDDING}.weight"], **found}
    if same(ordered[f"{EMBEDDING}.weight"].read(), ordered[f"{HEAD}.weight"].read()):
        del ordered[f"{HEAD}.weight"]
    return ordered


def tensor_name(architecture: Architecture, parameter: str) -> str:
    """llama.cpp's name of a parameter: blk.0.attn_q.weight."""
    names = get_tensor_name_map(_NETWORKS[architecture.kind], architecture.layers)
    found = names.get_name(parameter, try_suffixes=(".weight", ".bias"))
    assert found is not None, parameter
    return str(found)


def in_rotated_order(
    architecture: Architecture, parameter: str, numbers: Codes | np.ndarray
) -> Codes | np.ndarray:
    """Rows of queries and keys in llama.cpp's order.

    transformers rotates dimension i of a head with i + size / 2. llama.cpp's network llama rotates
    2 i with 2 i + 1, as the original Llama did (its networks for Qwen do as transformers). So the
    rows of each head change from halves to pairs: `permute` of convert_hf_to_gguf.py.
    """
    module = parameter.split(".")[-2]
    if module not in ("q_proj", "k_proj") or _NETWORKS[architecture.kind] is not MODEL_ARCH.LLAMA:
        return numbers
    rows = np.arange(numbers.shape[0])
    order = rows.reshape(-1, 2, architecture.head_size // 2).swapaxes(1, 2).reshape(-1)
    return numbers.rows(order) if isinstance(numbers, Codes) else numbers[order]
