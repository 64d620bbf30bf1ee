"""The rules of a backend for one precision: where Q/DQ pairs go, and in which formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from optkit.facts.codec import later
from optkit.facts.precisions import NumberFormat, Precision

ConvKind = Literal["conv", "thin_conv", "grouped_conv", "depthwise_conv"]
"""`thin_conv`: so few channels in and out that integer kernels have nothing to gain from."""
ProductForm = Literal["int8", "two terms", "int8-weight-only", "float"]
"""How a product is computed whose activation needs more than one scale, or a recurrent cell."""


@dataclass(frozen=True)
class OperatorSpeed:
    """What one element costs, and what each run of the operator costs beside its elements."""

    element_ns: float
    operator_us: float

    def ms(self, elements: int) -> float:
        return self.element_ns * elements / 1e6 + self.operator_us / 1e3


@dataclass(frozen=True)
class ConvSpeed:
    """Billions of multiply-adds per second of a convolution in floats and in integers, and what
    each element of its result costs beside them."""

    float_gmacs: float
    int8_gmacs: float
    float_result_ns: float
    int8_result_ns: float

    def saved_ms(self, macs: int, results: int) -> float:
        """Milliseconds that integers save; negative if they are slower."""
        by_macs = macs * (1 / self.float_gmacs - 1 / self.int8_gmacs)
        return (by_macs + results * (self.float_result_ns - self.int8_result_ns)) / 1e6


@dataclass(frozen=True)
class ProductSpeeds:
    """Billions of multiply-adds per second of a product of many rows: in floats, in integers, and
    with weights of 8 bits alone (in blocks, to which the kernel rounds the activation as well).
    Nanoseconds per element: of an activation, for the codes of its first term, and for what makes
    its second term; of a result, for the sum of the products of both terms."""

    float_gmacs: float
    int8_gmacs: float
    blocks_gmacs: float
    first_term_ns: float
    second_term_ns: float
    terms_sum_ns: float


@dataclass(frozen=True)
class KernelSpeeds:
    """How fast one core of a CPU runs the kernels of a build: convolutions, products, the change of
    values between floats and codes (and between the layouts of their kernels), sums of codes.
    `source`: whose speeds they are."""

    conv: ConvSpeed
    grouped_conv: ConvSpeed
    depthwise_conv: ConvSpeed
    product: ProductSpeeds
    conversion: OperatorSpeed
    sum: OperatorSpeed
    source: str
    thin_conv: ConvSpeed | None = later(None)  # None: as others


@dataclass(frozen=True)
class PlacementRules:
    """The rules of a backend for one precision on one target: pure data. `activation`: None if only
    weights are quantized.

    The quantizer follows them; the landing report checks them against the compiled engine. They are
    in the keys of steps, so a field that is added is declared by `codec.later`.
    """

    activation: NumberFormat | None
    weight: NumberFormat
    ops: frozenset[str]  # op types with a constant weight that may be quantized
    # quantize the other input of an Add after a quantized Conv (never after a MatMul: that would
    # quantize the residual stream of a transformer)
    residual_adds: bool
    # op types that only compute in integers if their output (after a following Relu or Add) is
    # quantized too
    quantize_outputs: frozenset[str]
    float_output: bool  # the last layer of the graph keeps a float output
    # op type → why it is never quantized on this target
    excluded: Mapping[str, str] = field(default_factory=dict)
    min_conv_channels: int = 1  # a Conv with fewer input channels (of all groups) stays in float
    thin_conv: str = "float is faster"  # the reason
    grouped_conv: bool = True  # a grouped Conv may be quantized
    # where a Conv whose groups have one input channel may be quantized; "between": where it reads
    # codes of quantized convolutions and they read its codes
    depthwise_conv: Literal["anywhere", "between", "nowhere"] = "anywhere"
    max_kernel: int | None = None  # a Conv with a larger kernel stays in float
    biased_1d_to_one: bool = True  # a 1-D Conv to one output channel, with a bias, may be quantized
    # allowed block sizes: any, those that divide the summed axis into two or more blocks, or those
    # that divide it and are powers of two
    blocks: Literal["any", "halving", "powers"] = "any"
    # an island of convolutions stays in float if these say that its borders cost more than it
    # saves; None: borders cost nothing
    kernels: KernelSpeeds | None = None
    two_term: bool = False  # an activation may have two terms; its product then runs twice
    free_bias: bool = False  # a product with a bias is not slower, so a bias may be added
    embeddings: bool = False  # embedding tables may be stored in 8 bits per row
    # op types whose bias must be int32, read by a DequantizeLinear with scale activation × weight;
    # otherwise they stay in float
    integer_bias: frozenset[str] = frozenset()
    # op types whose per-channel weight scale is split: a scalar in the weight's DequantizeLinear,
    # the rest in a Mul after the product (the bias in an Add)
    split_scale: frozenset[str] = frozenset()
    tensor_ops: frozenset[str] = frozenset()  # op types whose weights get one scale per tensor
    gemm_for_matrices: bool = False  # write a MatMul of two matrices (rank 2) as Gemm
    # write a product of which only the weight is quantized as MatMulNBits (com.microsoft) of this
    # accuracy level: 0 multiplies in floats, 4 in 8 bits
    nbits_accuracy: int | None = None
    last: Precision | None = None  # the precision of the graph's last layers, if it differs
    # the format of the matrices of experts, which a lookup finds for each token; None: floats
    experts: NumberFormat | None = later(None)
    # an LSTM may have such weights; its kernel rounds what it reads at run time
    recurrent: bool = later(False)

    @property
    def weights_in_blocks(self) -> bool:
        """Whether only weights are quantized, in blocks with one level of scales. Then the codes of
        a block depend only on this block, and a weight can be quantized piece by piece. (Blocks of
        E2M1 depend on a scale for the whole weight.)"""
        in_blocks = self.weight.granularity == "block" and not self.weight.has_two_levels
        return self.activation is None and in_blocks

    def weight_of(self, op: str) -> NumberFormat:
        """The weight format of an op type."""
        one = op in self.tensor_ops and self.weight.granularity == "channel"
        return replace(self.weight, granularity="tensor") if one else self.weight

    def with_zero_points(self, wanted: bool) -> Self:
        """The same rules, but codes of 4 bits that a MatMulNBits reads have zero points, or else
        signed scales. A training knows signed scales only."""
        four_bits = (
            self.nbits_accuracy is not None and self.weight.is_integer and self.weight.bits == 4
        )
        if not four_bits or wanted != self.weight.symmetric:
            return self
        weight = replace(
            self.weight,
            dtype="uint4" if wanted else "int4",
            symmetric=not wanted,
            signed_scale=not wanted,
        )
        return replace(self, weight=weight)
