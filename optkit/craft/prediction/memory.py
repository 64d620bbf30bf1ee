"""Bytes on the device, itemised: inference, and training by three methods.

Inference: weights with their scales, key-value cache, activations alive at once, what the runtime
keeps. Training follows the itemisation of Hugging Face's "Anatomy of model's memory" and, for
activations, Korthikanti et al. 2022 (arXiv 2205.05198); QLoRA: Dettmers et al. 2023 (arXiv
2305.14314).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape
from optkit.craft.prediction.work import BITS
from optkit.facts.documents.plan import InferenceMemory, Method, TrainingBytes
from optkit.facts.errors import Impossible

RUNTIME_BYTES = 500_000_000  # CUDA context and libraries; 0.3 to 0.6 GB, unverified
CACHE_SHARE = 0.9  # of what is left, that servers give to the cache: TensorRT-LLM's default

Recompute = Literal["none", "selective", "full"]

_NF4_BITS = 4.127  # with double-quantized scales, blocks of 64
_LORA_RANK = 16


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of inference, over all devices together."""

    weights: float
    cache: float
    activations: float
    workspace: float
    runtime: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + self.workspace + self.runtime

    def rounded(self) -> InferenceMemory:
        return InferenceMemory(
            weights=round(self.weights),
            cache=round(self.cache),
            activations=round(self.activations),
            workspace=round(self.workspace),
            runtime=round(self.runtime),
            total=round(self.total),
        )


def of_decoder(
    shape: DecoderShape, numbers: DecoderPrecision, *, tokens: float, batch: float, devices: int = 1
) -> MemoryEstimate:
    """A decoder with caches of `tokens` for `batch` sequences. Activations are those of one prompt
    of that length at its widest place; a workspace as large again for its products."""
    widest = shape.hidden * 2 + (2 if shape.gated else 1) * shape.ffn
    activations = tokens * widest * BITS[numbers.carrier] / 8
    cache = shape.cache_bytes(tokens, numbers.kv_bits) * batch * devices * shape.kv_share(devices)
    return MemoryEstimate(
        decoder_weights(shape, numbers), cache, activations, activations, RUNTIME_BYTES * devices
    )


def decoder_weights(shape: DecoderShape, numbers: DecoderPrecision) -> float:
    """Bytes: the body at `weight_bits`, embedding and vocabulary in the carrier unless the numbers
    say otherwise."""
    bits = BITS[numbers.carrier] if numbers.vocabulary_bits is None else numbers.vocabulary_bits
    ends = shape.parameters - shape.body
    return (shape.body * numbers.weight_bits + ends * bits) / 8


def devices_needed(
    shape: DecoderShape, numbers: DecoderPrecision, capacity: float, tokens: float
) -> int:
    """The smallest power of two of devices that hold one sequence of `tokens`. Raises Impossible
    for a device whose memory is not known, or that holds next to nothing, and where more devices
    than there are heads to share would not do."""
    if capacity <= RUNTIME_BYTES:
        raise Impossible("the device's memory is not known, or too small to run anything")
    devices = 1
    while largest_batch(shape, numbers, capacity, tokens, devices) < 1:
        devices *= 2
        if devices > shape.heads:
            raise Impossible(
                f"a sequence of {tokens:,.0f} tokens does not fit, on {shape.heads} devices either",
                hint="fewer tokens, or a device with more memory",
            )
    return devices


def largest_batch(
    shape: DecoderShape, numbers: DecoderPrecision, capacity: float, tokens: float, devices: int
) -> int:
    """Sequences of `tokens` that fit beside the weights."""
    free = _free(shape, numbers, capacity, tokens, devices)
    each = shape.cache_bytes(tokens, numbers.kv_bits) * devices * shape.kv_share(devices)
    return max(0, floor(CACHE_SHARE * free / each))


def cache_tokens(
    shape: DecoderShape,
    numbers: DecoderPrecision,
    capacity: float,
    tokens: float,
    tensor: int,
    pipeline: int = 1,
) -> float:
    """Tokens of all caches that fit beside the weights on `tensor` × `pipeline` devices, whose
    passes have up to `tokens` rows; below 0 where the weights do not fit."""
    free = _free(shape, numbers, capacity, tokens, tensor * pipeline)
    each = shape.kv_bytes(numbers.kv_bits) * tensor * shape.kv_share(tensor)
    return CACHE_SHARE * free / each


def largest_context(
    shape: DecoderShape, numbers: DecoderPrecision, capacity: float, devices: int, batch: int = 1
) -> int:
    """Tokens per sequence that fit for `batch` sequences."""
    low, high = 0, 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        fits = largest_batch(shape, numbers, capacity, middle, devices) >= batch
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _free(
    shape: DecoderShape, numbers: DecoderPrecision, capacity: float, tokens: float, devices: int
) -> float:
    taken = of_decoder(shape, numbers, tokens=tokens, batch=0, devices=devices).total
    return devices * capacity - taken


@dataclass(frozen=True)
class Training:
    """Bytes of training. `activations` None: unknown for this model and method. `temporary`: alive
    when the backward pass begins, beside all activations."""

    weights: float
    gradients: float
    optimizer: float
    activations: float | None
    temporary: float = 0.0

    @property
    def total(self) -> float:
        items = (self.weights, self.gradients, self.optimizer, self.activations or 0.0)
        return sum(items) + self.temporary

    def rounded(self) -> TrainingBytes:
        return TrainingBytes(
            weights=round(self.weights),
            gradients=round(self.gradients),
            optimizer=round(self.optimizer),
            activations=None if self.activations is None else round(self.activations),
            temporary=round(self.temporary),
            total=round(self.total),
        )


def training(
    parameters: float,
    method: Method,
    *,
    adapters: float,
    activations: float | None,
    kept: float = 0.0,
    temporary: float = 0.0,
) -> Training:
    """Adam in mixed precision: per trained parameter 6 bytes of weights (FP16 and an FP32 master),
    4 of gradients, 8 of optimizer. LoRA freezes the model in FP16 and trains `adapters` parameters;
    QLoRA freezes it in NF4, but `kept` parameters in FP16: embedding, head and norms, which
    bitsandbytes does not quantize."""
    if method == "full":
        trained, frozen = parameters, 0.0
    else:
        narrow = parameters - kept if method == "qlora" else 0.0
        trained, frozen = adapters, narrow * _NF4_BITS / 8 + 2 * (parameters - narrow)
    return Training(frozen + 6 * trained, 4 * trained, 8 * trained, activations, temporary)


def devices_to_train(found: Training, capacity: float) -> int | None:
    """Devices of `capacity` bytes that share weights, gradients and optimizer among them (ZeRO-3,
    arXiv 1910.02054). Each also holds the runtime, and what a sample of its own takes; None: it
    does not even hold these."""
    shared = found.weights + found.gradients + found.optimizer
    free = capacity - RUNTIME_BYTES - (found.total - shared)
    return ceil(shared / free) if free > 0 else None


def quick(weight_bytes: float) -> Training:
    """The rule of thumb: beside the weights twice their bytes for the optimizer, once each for
    gradients and activations, twice for temporaries. Activations do not really scale so."""
    return Training(
        weight_bytes, weight_bytes, 2 * weight_bytes, weight_bytes, temporary=2 * weight_bytes
    )


def decoder_activations(
    shape: DecoderShape, tokens: int, batch: int = 1, recompute: Recompute = "none"
) -> float:
    """Kept for the backward pass, FP16: s b h (34 + 5 a s / h) per layer; `selective` drops the
    attention scores, `full` keeps the layer's input alone (arXiv 2205.05198, table 2)."""
    size = shape.layers * tokens * batch * shape.hidden
    if recompute == "full":
        return 2 * size
    scores = 0.0 if recompute == "selective" else 5 * shape.heads * tokens / shape.hidden
    return size * (34 + scores)


def decoder_logits(shape: DecoderShape, tokens: int, batch: int = 1) -> float:
    """The loss keeps logits in FP32 (arXiv 2205.05198, section 4.3); their gradient is as large."""
    return 4.0 * tokens * batch * shape.vocabulary


def adapter_parameters(ends: Iterable[tuple[float, float]]) -> float:
    """Of LoRA on products of these inputs and outputs: rank 16 · (inputs + outputs) each."""
    return sum(_LORA_RANK * (a + b) for a, b in ends)


def decoder_products(shape: DecoderShape) -> list[tuple[float, float]]:
    """Inputs and outputs of every product in the layers of a decoder."""
    inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ends: list[tuple[float, float]] = [
        (shape.hidden, inner),
        (shape.hidden, kv),
        (shape.hidden, kv),
        (inner, shape.hidden),
    ]
    ends += [(shape.hidden, shape.ffn)] * (2 if shape.gated else 1) + [(shape.ffn, shape.hidden)]
    return ends * shape.layers
