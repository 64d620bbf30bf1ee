"""A decoder's two stages as work: prefill, which multiplies many rows, and decode, which reads all
weights and the whole key-value cache for one token per sequence.

The shape of a Llama: grouped-query attention, a gated MLP, one vocabulary projection for the last
token of each sequence (Touvron et al. 2023, arXiv 2307.09288; Ainslie et al. 2023, arXiv
2305.13245). `gated=False` is the older MLP of two matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from optkit.craft.prediction.work import BITS, Work, gemm

# Kernels per layer of an engine that fuses (norm, QKV, attention with RoPE and cache, output
# projection, norm, gate and up, activation, down) plus what quantizes; counted, unverified.
FUSED_KERNELS = 10.0
_CROSSING_KERNELS = 4.0  # of a cross attention: norm, query, attention, output projection


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder. `ffn`: inner size of the MLP. `tied`: one table is both the embedding and
    the vocabulary projection. `crossed`: tokens of an encoder whose keys and values each layer
    reads beside those of its own cache; the products of that attention count to the MLP. `window`:
    how many tokens each of `local_layers` layers reads at most; the others read all."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    crossed: int = 0
    window: int | None = None
    local_layers: int = 0

    @property
    def attention_weights(self) -> int:
        """Of one layer: query, key, value and output projections."""
        inner = self.heads * self.head_dim
        return self.hidden * (2 * inner + 2 * self.kv_heads * self.head_dim)

    @property
    def mlp_weights(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def body(self) -> int:
        """Weights that every token multiplies, without the vocabulary's."""
        return self.layers * (self.attention_weights + self.mlp_weights)

    @property
    def parameters(self) -> int:
        """With embedding and vocabulary projection, without norms."""
        return self.body + (1 if self.tied else 2) * self.hidden * self.vocabulary

    def kv_share(self, devices: int) -> float:
        """Of keys and values, what each of so many devices holds. A key head is not cut: where
        there are more devices than heads, some hold the same one."""
        return 1 / min(devices, self.kv_heads)

    def kv_bytes(self, bits: int = 16) -> int:
        """Cache of one token: key and value of every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bits // 8

    def cache_bytes(self, tokens: float, bits: int = 16) -> float:
        """What a sequence of so many tokens keeps, with what its encoder made."""
        return self.kv_bytes(bits) * (self.cached(tokens) + self.crossed)

    def cached(self, tokens: float) -> float:
        """Of so many tokens, how many are in the cache of a layer: the mean over the layers."""
        return tokens - self._local_share * max(0.0, tokens - (self.window or tokens))

    def causal_pairs(self, tokens: float) -> float:
        """Pairs of a query and a key that it sees, for a text of so many tokens: the mean over the
        layers. With a window of w, t - w queries see i - w keys less, for i from w + 1 to t."""
        hidden = max(0.0, tokens - (self.window or tokens))
        return (tokens * (tokens + 1) - self._local_share * hidden * (hidden + 1)) / 2

    @property
    def _local_share(self) -> float:
        return self.local_layers / self.layers


@dataclass(frozen=True)
class DecoderPrecision:
    """How a decoder is stored and multiplied. `weight_bits` with scales; `dtype`: the peak of its
    products; `carrier`: of attention and everything else; the vocabulary is kept in the carrier
    unless `vocabulary_bits` says otherwise."""

    weight_bits: float
    dtype: str
    carrier: str = "fp16"
    kv_bits: int = 16
    weight_only: bool = False
    vocabulary_bits: float | None = None


def prefill(
    shape: DecoderShape,
    numbers: DecoderPrecision,
    tokens: float,
    batch: float = 1.0,
    *,
    devices: int = 1,
    kernels: float = FUSED_KERNELS,
) -> list[Work]:
    """Work of reading `batch` prompts of `tokens` each. Attention is causal: half of all pairs."""
    pairs = shape.causal_pairs(tokens) + tokens * shape.crossed
    cache = shape.kv_bytes(numbers.kv_bits) * shape.crossed * batch
    return forward(shape, numbers, tokens * batch, batch, pairs * batch, cache, devices, kernels)


def step(
    shape: DecoderShape,
    numbers: DecoderPrecision,
    context: float,
    batch: float,
    *,
    devices: int = 1,
    kernels: float = FUSED_KERNELS,
    beams: int = 1,
    shared: float = 0.0,
) -> list[Work]:
    """Work of one token for each of `batch` sequences whose caches hold `context` tokens.
    `beams`: hypotheses per sequence. Each reads by itself what it wrote; the first `shared` tokens,
    their prompt, and what an encoder made come from memory once for all of them, and for the others
    from the L2 cache."""
    rows, each = batch * beams, shape.kv_bytes(numbers.kv_bits)
    context = shape.cached(context) + shape.crossed
    shared = min(shape.cached(shared) + shape.crossed, context)
    cache = each * (shared + beams * (context - shared)) * batch
    reread = each * shared * (beams - 1) * batch
    return forward(shape, numbers, rows, rows, context * rows, cache, devices, kernels, reread)


def forward(
    shape: DecoderShape,
    numbers: DecoderPrecision,
    rows: float,
    last: float,
    pairs: float,
    cache: float,
    devices: int = 1,
    kernels: float = FUSED_KERNELS,
    reread: float = 0.0,
) -> list[Work]:
    """Work of one pass of an engine, which may read prompts and write tokens at once: `rows` tokens
    through all layers; `last` of them reach the vocabulary; `pairs` of query and key; `cache` bytes
    read by attention of all layers from memory, `reread` from the L2 cache."""
    n, inner = shape.layers, shape.heads * shape.head_dim
    kv = 2 * shape.kv_heads * shape.head_dim * shape.kv_share(devices)
    held = BITS[numbers.carrier]

    def product(ins: float, outs: float) -> Work:
        return gemm(
            rows, ins, outs, dtype=numbers.dtype, weight_bits=numbers.weight_bits,
            held_bits=held if numbers.weight_only else None, weight_only=numbers.weight_only,
            times=n,
        )  # fmt: skip

    wide = (2 if shape.gated else 1) * shape.ffn / devices
    products = [
        product(shape.hidden, inner / devices + kv),
        product(inner / devices, shape.hidden),
        product(shape.hidden, wide),
        product(shape.ffn / devices, shape.hidden),
    ]
    attention = Work(
        "attention",
        numbers.carrier,
        4 * pairs * inner / devices,
        moved=rows * (2 * inner / devices + kv) * held / 8,
        streamed=cache / n * shape.kv_share(devices),
        reread=reread / n * shape.kv_share(devices),
        times=n,
    )
    # two norms with their residuals (read 2, write 2), and the activation between the MLP's halves
    passing = rows * (8 * shape.hidden + wide + shape.ffn / devices) * held / 8
    crossing = _CROSSING_KERNELS if shape.crossed else 0.0
    rest = Work(
        "elementwise", numbers.carrier, moved=passing, kernels=kernels - 5 + crossing, times=n
    )
    found = [*products, attention, rest]
    if devices > 1:  # one all-reduce behind attention, one behind the MLP
        size = 2 * (devices - 1) / devices * rows * shape.hidden * held / 8
        found.append(
            Work("elementwise", numbers.carrier, linked=size, devices=devices, times=2 * n)
        )
    bits = held if numbers.vocabulary_bits is None else numbers.vocabulary_bits
    vocabulary = gemm(
        last, shape.hidden, shape.vocabulary / devices, dtype=numbers.carrier, weight_bits=bits
    )
    return [*found, vocabulary]
