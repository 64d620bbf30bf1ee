"""The sizes of a decoder from what is known of it: a few numbers, or its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.node_cost import NodeCost
from optkit.ground.decoder import Decoder, DecoderSizes

_FFN = 3.5  # of the hidden size, as in Llama 2 70B and Llama 3
_VOCABULARY = 32000


def described(sizes: DecoderSizes) -> tuple[DecoderShape, list[str]]:
    """A gated decoder of these sizes, and a sentence for each size that was assumed.

    The inner size of the MLP takes what the parameters leave, so that the weights are right
    whatever is assumed. Raises UsageError where nothing is left for it.
    """
    parameters, layers, kv_heads, head_dim = (
        sizes.parameters,
        sizes.layers,
        sizes.kv_heads,
        sizes.head_dim,
    )
    heads, hidden, ffn, vocabulary = sizes.heads, sizes.hidden, sizes.ffn, sizes.vocabulary
    tied = sizes.tied
    assumed = []
    if vocabulary is None:
        vocabulary = _VOCABULARY
        assumed.append(f"vocabulary {vocabulary}")
    kv = kv_heads * head_dim
    if hidden is None and heads is not None:
        hidden = heads * head_dim
        assumed.append(f"hidden {hidden}: heads × head size")
    if hidden is None:
        hidden = _hidden(parameters, layers, kv, (1 if tied else 2) * vocabulary)
        assumed.append(f"hidden {hidden}: an MLP {_FFN} times as wide")
    if heads is None:
        heads = max(kv_heads, round(hidden / head_dim))
        assumed.append(f"heads {heads}: hidden / head size")
    if heads % kv_heads:
        raise UsageError(
            f"{heads} heads cannot share {kv_heads} KV heads evenly",
            where="--kv-heads",
            hint="name --heads as config.json has it (num_attention_heads)",
        )
    if ffn is None:
        bare = DecoderShape(layers, hidden, heads, kv_heads, head_dim, 0, vocabulary, tied=tied)
        ffn = round((parameters - bare.parameters) / (3 * layers * hidden))
        assumed.append(f"MLP {ffn}: what the parameters leave")
    if ffn < 1:
        raise UsageError(
            f"{parameters:.3g} parameters are too few for these sizes",
            where="--params",
            hint="compare with config.json: hidden_size, num_hidden_layers, vocab_size",
        )
    if not tied:
        assumed.append("embedding and vocabulary projection apart")
    shape = DecoderShape(layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, tied=tied)
    return shape, assumed


def _hidden(parameters: float, layers: int, kv: int, ends: int) -> int:
    """h of  layers · (2 h² + 2 h kv + 3 · FFN · h²) + h ends = parameters, a multiple of what the
    KV heads take, so that heads share them evenly. `ends`: rows of embedding and vocabulary."""
    a = layers * (2 + 3 * _FFN)
    b = 2 * layers * kv + ends
    exact = (-b + sqrt(b * b + 4 * a * parameters)) / (2 * a)
    return max(1, round(exact / kv)) * kv


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def of_config(config: Mapping[str, object], where: str) -> DecoderShape:
    """The sizes of a decoder from its config.json of Hugging Face: that of a Llama, or one with the
    same names. Raises InputRefused for a file that lacks a size, and for experts, whose weights are
    not all read for a token."""
    text = config.get("text_config")
    said = text if isinstance(text, dict) else config
    if any(said.get(name) for name in _EXPERTS):
        raise InputRefused("a decoder with experts is not planned", where=where)

    def size(name: str, default: int | None = None) -> int:
        found = said.get(name)
        number = default if found is None else found
        if not isinstance(number, int) or number < 1:
            raise InputRefused(
                f"it has no {name}",
                where=where,
                hint="it must be the config.json of a decoder such as Llama, Qwen or Mistral",
            )
        return number

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return DecoderShape(
        size("num_hidden_layers"),
        hidden,
        heads,
        size("num_key_value_heads", heads),
        size("head_dim", max(1, hidden // heads)),
        size("intermediate_size"),
        size("vocab_size"),
        tied=said.get("tie_word_embeddings") is True,
    )


def of_graph(decoder: Decoder, costs: Mapping[str, NodeCost], parameters: int) -> DecoderShape:
    """The sizes of an exported decoder of that many parameters. Its MLP is given the width at which
    all weights of its products are counted; where the graph has a table less than embedding and
    vocabulary take apart, they are tied. Raises InputRefused where no product makes the vocabulary.
    """
    # not asked for macs: sizes may stay unknown inside, weights never do
    products = [c for c in costs.values() if c.op in ("MatMul", "Gemm") and c.weight_bytes]
    last = next((c for c in reversed(products) if c.columns == decoder.vocabulary), None)
    table = last or _transposed(costs, decoder.vocabulary)
    if table is None:
        raise InputRefused(
            f"no product of the graph has {decoder.vocabulary} columns",
            where="logits",
            hint="describe the decoder: --params, --layers, --kv-heads, --head-dim",
        )
    ends = _weights(table)
    hidden = ends // decoder.vocabulary
    heads = max(decoder.heads, hidden // decoder.head_size)
    bare = DecoderShape(
        decoder.layers, hidden, heads, decoder.heads, decoder.head_size, 0, decoder.vocabulary
    )
    rest = sum(_weights(c) for c in products if c is not last) - bare.body
    shape = replace(bare, ffn=max(1, round(rest / (3 * decoder.layers * hidden))))
    return replace(shape, tied=parameters < shape.parameters - ends / 2)


def _weights(cost: NodeCost) -> int:
    """How many numbers a node's constants hold."""
    return cost.weight_bytes * 8 // (cost.bits or 32)


def _transposed(costs: Mapping[str, NodeCost], vocabulary: int) -> NodeCost | None:
    """The Transpose of an embedding that is the vocabulary projection too."""
    turned = (c for c in costs.values() if c.op == "Transpose" and c.weight_bytes)
    return next((c for c in turned if not _weights(c) % vocabulary), None)
