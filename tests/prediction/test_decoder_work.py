"""Decoders: published sizes, bounds from the literature, and where formats stop paying."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.prediction import decoder_shape, memory, serving
from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape, prefill, step
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work import total
from optkit.craft.prediction.work_time import seconds
from optkit.facts.errors import Impossible, InputRefused, UsageError
from optkit.facts.node_cost import NodeCost
from optkit.facts.precisions import precision
from optkit.facts.tensors import TensorInfo
from optkit.ground.decoder import Decoder, DecoderSizes
from optkit.ground.devices import target

LLAMA_2_7B = DecoderShape(32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_3_8B = DecoderShape(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_2_70B = DecoderShape(80, 8192, 64, 8, 128, 28672, 32000)
LOAD = serving.Load(1000, 100)


@pytest.mark.parametrize(
    ("shape", "parameters", "cache"),
    [
        (LLAMA_2_7B, 6_738_415_616, 524_288),
        (LLAMA_3_8B, 8_030_261_248, 131_072),
        (LLAMA_2_70B, 68_976_648_192, 327_680),
    ],
)
def test_sizes_are_the_published_ones(shape: DecoderShape, parameters: int, cache: int) -> None:
    norms = (2 * shape.layers + 1) * shape.hidden
    assert shape.parameters + norms == parameters
    assert shape.kv_bytes() == cache and shape.kv_bytes(8) == cache // 2


@given(tokens=st.integers(1, 200), window=st.integers(1, 250), local=st.integers(0, 6))
def test_a_window_bounds_the_cache_and_the_pairs_of_its_layers(
    tokens: int, window: int, local: int
) -> None:
    shape = replace(LLAMA_2_7B, layers=6, window=window, local_layers=local)
    seen = [[min(at, w) for at in range(1, tokens + 1)] for w in (window, tokens)]
    kept = local * seen[0][-1] + (6 - local) * seen[1][-1]
    assert shape.cache_bytes(tokens) == pytest.approx(shape.kv_bytes() / 6 * kept)
    pairs = local * sum(seen[0]) + (6 - local) * sum(seen[1])
    assert 6 * shape.causal_pairs(tokens) == pytest.approx(pairs)


def test_a_step_reads_the_window_and_not_the_text() -> None:
    numbers = DecoderPrecision(16, "fp16")
    whole, local = LLAMA_2_7B, replace(LLAMA_2_7B, window=4096, local_layers=32)
    steps = {name: total(step(shape, numbers, tokens, 1)) for name, shape, tokens in (
        ("whole", whole, 4096), ("local", local, 4096), ("long", local, 65536))}  # fmt: skip
    assert steps["whole"] == steps["local"] == steps["long"]
    assert memory.of_decoder(local, numbers, tokens=65536, batch=2).cache == 2 * 4096 * 524_288


def test_a_description_gives_the_weights_back() -> None:
    shape, assumed = decoder_shape.described(
        DecoderSizes(70e9, layers=80, kv_heads=8, head_dim=128)
    )
    assert (shape.hidden, shape.heads) == (8192, 64)
    assert shape.parameters == pytest.approx(70e9, rel=1e-4)
    assert len(assumed) == 5 and assumed[-1] == "embedding and vocabulary projection apart"
    sizes = DecoderSizes(LLAMA_3_8B.parameters, layers=32, kv_heads=8, head_dim=128, heads=32,
                         hidden=4096, vocabulary=128256, ffn=14336)  # fmt: skip
    exact, nothing = decoder_shape.described(sizes)
    assert exact == LLAMA_3_8B and nothing == ["embedding and vocabulary projection apart"]


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        decoder_shape.described(DecoderSizes(1e8, 80, kv_heads=8, head_dim=128, hidden=8192))
    with pytest.raises(UsageError, match="evenly"):
        decoder_shape.described(DecoderSizes(7e9, 32, kv_heads=5, head_dim=128, hidden=4096))


def test_a_step_does_what_the_literature_counts() -> None:
    """Two operations per weight and sequence, and 4 · inner · context per layer for attention;
    weights once, the cache of every sequence (scaling-book, inference.md)."""
    batch, context = 16, 500.0
    found = total(step(LLAMA_3_8B, DecoderPrecision(16, "fp16"), context, batch))
    weights = LLAMA_3_8B.body + 4096 * 128256
    attention = 4 * 4096 * context * batch * 32
    assert found.operations == pytest.approx(2 * weights * batch + attention)
    assert found.weight_bytes == pytest.approx(2 * weights)
    assert found.streamed == pytest.approx(131_072 * context * batch)


def test_beams_fetch_their_prompt_once_and_what_they_wrote_each() -> None:
    """Three sequences of 4 beams after 900 tokens of prompt and 50 of their own."""
    found = total(step(LLAMA_3_8B, DecoderPrecision(16, "fp16"), 950.0, 3, beams=4, shared=900.0))
    assert found.streamed == pytest.approx(131_072 * 3 * (900 + 4 * 50))
    assert found.reread == pytest.approx(131_072 * 3 * 3 * 900)
    apart = total(step(LLAMA_3_8B, DecoderPrecision(16, "fp16"), 950.0, 3 * 4))
    assert found.operations == pytest.approx(apart.operations)
    assert apart.streamed == pytest.approx(131_072 * 3 * 4 * 950)


def test_seventy_billion_in_fp16_fit_one_h200() -> None:
    """68.98e9 weights are 138.0 GB; 143,771 MiB are 150.8 GB, and 141 GB as marketed would hold
    little of a cache beside them."""
    numbers, capacity = DecoderPrecision(16, "fp16"), float(target("h200").memory_bytes or 0)
    assert memory.devices_needed(LLAMA_2_70B, numbers, capacity, 1280) == 1
    rest = memory.of_decoder(LLAMA_2_70B, numbers, tokens=1280, batch=0).total
    fits = 0.9 * (143_771 * 2**20 - rest) / (327_680 * 1280)
    assert memory.largest_batch(LLAMA_2_70B, numbers, capacity, 1280, 1) == int(fits) > 20


def test_the_cross_attention_of_whisper_small_by_hand() -> None:
    """12 layers with 12 heads of 64 for keys and values of 1500 tokens of sound: 55.3 MB in FP16
    for each sequence, which every step reads again."""
    shape, numbers = (
        DecoderShape(12, 768, 12, 12, 64, 3840, 51865, gated=False),
        DecoderPrecision(16, "fp16"),
    )
    crossed = replace(shape, crossed=1500)
    assert crossed.cache_bytes(0) == 2 * 12 * 12 * 64 * 1500 * 2 == 55_296_000
    alone, both = (total(step(s, numbers, 100.0, 4)) for s in (shape, crossed))
    assert both.streamed - alone.streamed == pytest.approx(4 * 55_296_000)
    assert both.operations - alone.operations == pytest.approx(4 * 12 * 4 * 768 * 1500)
    read, reads = (total(prefill(s, numbers, 4.0, 2)) for s in (shape, crossed))
    assert reads.streamed - read.streamed == pytest.approx(2 * 55_296_000)
    assert reads.operations - read.operations == pytest.approx(2 * 12 * 4 * 4 * 768 * 1500)
    held = memory.of_decoder(crossed, numbers, tokens=448, batch=3)
    assert held.cache == 3 * (55_296_000 + 448 * 36_864)
    one = memory.largest_batch(crossed, numbers, 2e9, 448, 1)
    assert one < memory.largest_batch(shape, numbers, 2e9, 448, 1) / 3


def test_prefill_is_causal_and_devices_share_the_work() -> None:
    numbers = DecoderPrecision(16, "fp16")
    one = total(prefill(LLAMA_2_7B, numbers, 2048))
    dense = 2 * LLAMA_2_7B.body * 2048 + 2 * 4096 * 32000
    assert one.operations == pytest.approx(dense + 4 * 4096 * 2048 * 2049 / 2 * 32)
    four = total(prefill(LLAMA_2_7B, numbers, 2048, devices=4))
    assert four.operations == pytest.approx(one.operations / 4)
    assert four.weight_bytes == pytest.approx(one.weight_bytes / 4)
    assert one.linked == 0 and four.linked > 0


@given(st.integers(1, 512), st.sampled_from(["fp16", "fp8", "int8", "int4"]))
def test_decode_never_beats_its_bound(batch: int, name: str) -> None:
    """tokens/s ≤ batch · BW / (weights + batch · cache); shares of peaks stay below one."""
    device, numbers = target("h100"), serving.numbers_of(precision(name))
    found = serving.generate(LLAMA_3_8B, numbers, device, LOAD, batch)
    read = LLAMA_3_8B.body * numbers.weight_bits / 8
    read += batch * LOAD.context * LLAMA_3_8B.kv_bytes(numbers.kv_bits)
    assert batch / found.token <= batch * (device.bandwidth or 0) / read
    assert found.tokens_per_second <= batch / found.token
    assert 0 < found.mfu < 1 and 0 < found.mbu < 1


def test_tokens_per_second_count_the_prompts_and_the_mean_context() -> None:
    """batch · new / (prefill + new · step), each step with half of the new tokens in the cache."""
    device, numbers, batch = target("h100"), serving.numbers_of(precision("fp16")), 8
    load = serving.Load(1000, 400)
    assert load.context == 1200
    found = serving.generate(LLAMA_3_8B, numbers, device, load, batch)
    eff = fitted().efficiencies
    start = seconds(prefill(LLAMA_3_8B, numbers, 1000, batch), device, eff).total
    each = seconds(step(LLAMA_3_8B, numbers, 1200, batch), device, eff).total
    token = each + batch * eff.sequence_us * 1e-6
    assert found.token == pytest.approx(token)
    assert found.tokens_per_second == pytest.approx(batch * 400 / (start + 400 * token))


def test_int4_stops_paying_on_an_h200_and_fp8_does_not() -> None:
    """Llama-3.1-8B, AWQ in groups of 128 against BF16: published 1.33x at batch 1, 0.75x at 8,
    0.83x at 64; FP8 1.3 to 1.4x (NVIDIA/Model-Optimizer, examples/benchmark.md)."""
    h200 = target("h200")
    bf16, awq = (
        DecoderPrecision(16, "bf16", "bf16"),
        DecoderPrecision(4.125, "bf16", "bf16", weight_only=True),
    )
    fp8 = serving.numbers_of(precision("fp8"))

    def gain(numbers: DecoderPrecision, batch: int) -> float:
        base, other = (
            serving.generate(LLAMA_3_8B, n, h200, LOAD, batch).token for n in (bf16, numbers)
        )
        return base / other

    assert 1.2 < gain(awq, 1) < 1.8
    assert 0.65 < gain(awq, 8) < 0.85
    assert 0.7 < gain(awq, 64) < 0.95
    assert all(1.2 < gain(fp8, batch) < 1.7 for batch in (1, 8, 64))
    crossing = serving.slower_from(LLAMA_3_8B, awq, bf16, h200, LOAD)
    assert crossing is not None and 2 <= crossing <= 8
    assert gain(awq, crossing - 1) > 1 > gain(awq, crossing + 1)
    assert serving.slower_from(LLAMA_3_8B, fp8, bf16, h200, LOAD) is None


def test_products_turn_compute_bound_near_the_closed_form() -> None:
    """B* = peak · bytes per weight / (2 · BW), 295 on an H100 in FP16, times what is reached."""
    at = serving.compute_bound_from(LLAMA_2_70B, DecoderPrecision(16, "fp16"), target("h100"), LOAD)
    assert at is not None and 295 / 1.5 < at < 295 * 1.5


def test_memory_by_hand() -> None:
    found = memory.of_decoder(LLAMA_2_7B, DecoderPrecision(16, "fp16"), tokens=100, batch=4)
    assert found.weights == 2 * LLAMA_2_7B.parameters
    assert found.cache == 524_288 * 400
    int4 = memory.decoder_weights(LLAMA_2_7B, serving.numbers_of(precision("int4")))
    ends = 2 * 2 * 4096 * 32000  # embedding and vocabulary stay in FP16
    assert int4 == LLAMA_2_7B.body * 4.5 / 8 + ends


@given(st.sampled_from(["l4", "h100", "b200"]), st.integers(16, 4096))
def test_the_largest_batch_fits_and_the_largest_context_too(name: str, tokens: int) -> None:
    capacity = float(target(name).memory_bytes or 0)
    numbers = DecoderPrecision(16, "fp16")
    devices = memory.devices_needed(LLAMA_2_70B, numbers, capacity, tokens)
    batch = memory.largest_batch(LLAMA_2_70B, numbers, capacity, tokens, devices)

    def needs(n: int) -> float:
        return memory.of_decoder(
            LLAMA_2_70B, numbers, tokens=tokens, batch=n, devices=devices
        ).total

    assert needs(batch) <= devices * capacity
    assert (
        devices == 1
        or memory.of_decoder(
            LLAMA_2_70B, numbers, tokens=tokens, batch=1, devices=devices // 2
        ).total
        > devices // 2 * capacity
    )
    context = memory.largest_context(LLAMA_2_70B, numbers, capacity, devices)
    longer = context + max(2, context // 100)
    assert memory.largest_batch(LLAMA_2_70B, numbers, capacity, context, devices) >= 1
    assert memory.largest_batch(LLAMA_2_70B, numbers, capacity, longer, devices) < 1


def test_training_is_itemised_as_the_papers_do() -> None:
    n = LLAMA_2_7B.parameters
    adapters = memory.adapter_parameters(memory.decoder_products(LLAMA_2_7B))
    kept = memory.decoder_activations(LLAMA_2_7B, 2048)
    full, lora, qlora = (
        memory.training(n, method, adapters=adapters, activations=kept)
        for method in get_args(memory.Method)
    )
    assert full.weights + full.gradients + full.optimizer == 18 * n
    # arXiv 2205.05198: s b h (34 + 5 a s / h) per layer
    assert full.activations == 32 * 2048 * 4096 * (34 + 5 * 32 * 2048 / 4096)
    assert qlora.total < lora.total < full.total
    # rank 16 on seven products: 16 · (4 · 2 · 4096 + 3 · (4096 + 11008)) · 32
    assert adapters == 39_976_960
    assert memory.quick(14e9).total == 7 * 14e9
    selective = memory.decoder_activations(LLAMA_2_7B, 2048, recompute="selective")
    recomputed = memory.decoder_activations(LLAMA_2_7B, 2048, recompute="full")
    assert (selective, recomputed) == (34 * 32 * 2048 * 4096, 2 * 32 * 2048 * 4096)


def test_qlora_of_8b_by_hand() -> None:
    """Llama 3 8B on 1024 tokens. 6,979,321,856 weights of its layers in NF4 with double-quantized
    scales, 1,050,673,152 of embedding and head and 266,240 of norms in 16 bits, 41,943,040 of
    adapters at 18 bytes; logits of 1024 x 128,256 in FP32 and their gradient."""
    n = 8_030_261_248
    adapters = memory.adapter_parameters(memory.decoder_products(LLAMA_3_8B))
    assert (LLAMA_3_8B.body, n - LLAMA_3_8B.body) == (6_979_321_856, 1_050_673_152 + 266_240)
    assert adapters == 41_943_040
    logits = memory.decoder_logits(LLAMA_3_8B, 1024)
    assert logits == 525_336_576
    kept = memory.decoder_activations(LLAMA_3_8B, 1024, recompute="full") + logits
    assert kept == 2 * 32 * 1024 * 4096 + 525_336_576
    qlora, lora = (
        memory.training(n, method, adapters=adapters, activations=kept, kept=n - LLAMA_3_8B.body,
                        temporary=logits)
        for method in ("qlora", "lora")
    )  # fmt: skip
    assert qlora.total == pytest.approx(3.6005e9 + 2.1019e9 + 0.7550e9 + 0.7938e9 + 0.5253e9, 1e-4)
    assert lora.total == pytest.approx(16.0605e9 + 0.7550e9 + 0.7938e9 + 0.5253e9, rel=1e-4)


def test_a_graph_gives_its_sizes_back() -> None:
    """Llama-2-7B's products as an exporter leaves them, one by one."""
    shape = LLAMA_2_7B
    cache = tuple(
        TensorInfo(f"past_key_values.{i}.{part}", "float16", ("batch", 32, "past", 128))
        for i in range(shape.layers)
        for part in ("key", "value")
    )
    sizes = [(4096, 4096)] * 4 + [(4096, 11008)] * 2 + [(11008, 4096)]
    products = [*(sizes * shape.layers), (4096, 32000)]
    costs = {
        f"p{i}": NodeCost("MatMul", a * b, 2 * a * b, 2 * a, 2 * b, columns=b, bits=16)
        for i, (a, b) in enumerate(products)
    }
    decoder, apart = Decoder(cache, 32000, positions=False), shape.parameters + 65 * 4096
    assert decoder_shape.of_graph(decoder, costs, apart) == shape
    tied, table = replace(shape, tied=True), 4096 * 32000
    assert decoder_shape.of_graph(decoder, costs, apart - table) == tied
    # a table that two nodes read stays one constant: it is turned for the product
    turned = {**costs, "turn": NodeCost("Transpose", 0, 2 * table, 0, 2 * table, bits=16)}
    turned["p224"] = NodeCost("MatMul", None, 0, None, None, columns=32000, bits=16)
    assert decoder_shape.of_graph(decoder, turned, apart - table) == tied
    with pytest.raises(InputRefused, match="32001 columns"):
        decoder_shape.of_graph(Decoder(cache, 32001, positions=False), costs, apart)


def test_one_table_for_embedding_and_vocabulary_is_held_once() -> None:
    """Llama 3.2 1B (tie_word_embeddings): 1,235,814,400 parameters with 33 norms of 2048."""
    shape = DecoderShape(16, 2048, 32, 8, 64, 8192, 128256, tied=True)
    assert shape.parameters + 33 * 2048 == 1_235_814_400
    assert memory.decoder_weights(shape, DecoderPrecision(16, "fp16")) == 2 * shape.parameters
    assert (
        total(step(shape, DecoderPrecision(16, "fp16"), 100, 1)).weight_bytes
        == 2 * shape.parameters
    )
    sizes = DecoderSizes(shape.parameters, 16, kv_heads=8, head_dim=64, hidden=2048,
                         vocabulary=128256, tied=True)  # fmt: skip
    found, assumed = decoder_shape.described(sizes)
    assert found == shape and not any("apart" in one for one in assumed)
    known = DecoderSizes(3.2e9, 28, kv_heads=8, head_dim=128, vocabulary=128256, tied=True)
    guessed, _ = decoder_shape.described(known)
    assert guessed.parameters == pytest.approx(3.2e9, rel=1e-3)


def test_a_sequence_that_no_number_of_devices_holds_is_reported() -> None:
    """Key heads are not cut: beyond as many devices, each holds as much of the cache as before."""
    with pytest.raises(Impossible, match="on 64 devices either"):
        memory.devices_needed(LLAMA_2_70B, DecoderPrecision(16, "fp16"), 80e9, 100e6)


def test_each_layer_exchanges_its_sums_twice_among_all_devices() -> None:
    """A ring all-reduce sends 2 (d - 1) / d of a row's hidden state, behind attention and MLP."""
    numbers, batch = DecoderPrecision(16, "fp16"), 8
    for devices in (2, 4):
        found = total(step(LLAMA_3_8B, numbers, 500.0, batch, devices=devices))
        each = 2 * (devices - 1) / devices * batch * 4096 * 2
        assert found.linked == pytest.approx(2 * 32 * each)
    assert total(step(LLAMA_3_8B, numbers, 500.0, batch)).linked == 0


def test_a_tenth_of_what_is_free_stays_out_of_the_cache() -> None:
    numbers, capacity = DecoderPrecision(16, "fp16"), 80e9
    batch = memory.largest_batch(LLAMA_3_8B, numbers, capacity, 1000, 1)
    rest = memory.of_decoder(LLAMA_3_8B, numbers, tokens=1000, batch=0).total
    each = LLAMA_3_8B.kv_bytes() * 1000
    assert batch * each <= 0.9 * (capacity - rest) < (batch + 1) * each
