"""`optkit plan`: from a description, from a model, what it prints, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import optkit

Optkit = Callable[..., Any]
LLAMA = ("--params", "70b", "--layers", 80, "--kv-heads", 8, "--head-dim", 128)


def test_seventy_billion_on_two_targets(optkit_here: Optkit, cache: Path) -> None:
    done = optkit_here("plan", *LLAMA, "--target", "h100", "--target", "l4")
    assert done.code == 0
    assert "327,680 bytes of cache per token at FP16" in done.out
    assert "all figures predicted" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    found = optkit_here("plan", *LLAMA, "--target", "h100", "--target", "l4", "--json").result
    assert found["model"]["kv_bytes_per_token_fp16"] == 327_680
    needed = {(row["target"], row["precision"]): row["devices"] for row in found["results"]}
    assert needed[("h100-sxm", "fp16")] == 2 and needed[("l4", "fp16")] == 8
    assert needed[("h100-sxm", "fp8")] == 1
    for row in found["results"]:
        assert row["price"]["provider"] and row["price"]["as_of"]
        assert all(one["usd_per_million"] > 0 for one in row["latency"])
    assert not cache.exists()  # nothing to export


def test_a_small_decoder_waits_for_the_host(optkit_here: Optkit, cache: Path) -> None:
    sizes = ("--params", "10m", "--layers", 4, "--kv-heads", 2, "--head-dim", 32, "--vocab", 4000)
    found = optkit_here("plan", *sizes, "--target", "l4", "--precision", "fp16", "--json").result
    (row,) = found["results"]
    assert row["latency"][-1]["bounds"]["decode"] == "host"


def test_tied_embeddings_are_said(optkit_here: Optkit, cache: Path) -> None:
    sizes = ("--params", "1235814400", "--layers", 16, "--kv-heads", 8, "--head-dim", 64,
             "--hidden", 2048, "--vocab", 128256)  # fmt: skip
    asked = ("plan", *sizes, "--target", "l4", "--precision", "fp16", "--json")
    apart, tied = (optkit_here(*asked, *more).result for more in ((), ("--tied",)))
    assert apart["results"][0]["memory"]["weights"] == pytest.approx(2 * 1235814400, rel=1e-3)
    assert tied["results"][0]["memory"]["weights"] == pytest.approx(2 * 1235814400, rel=1e-3)
    assert tied["model"]["shape"]["ffn"] == pytest.approx(8192, abs=1)
    assert apart["model"]["shape"]["ffn"] < 6000  # the rest went into a second table


@pytest.mark.slow
def test_a_folder_tells_that_its_embeddings_are_tied(
    optkit_here: Optkit, cache: Path, tmp_path: Path
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    # a table of fewer numbers would be turned and stored twice
    config = LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "tied")
    asked = ("plan", tmp_path / "tied", "--target", "l4", "--precision", "fp16", "--json")
    found = optkit_here(*asked).result
    assert found["model"]["shape"] == {
        "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 176,
        "vocabulary": 4096, "gated": True, "tied": True, "crossed": 0,
        "window": None, "local_layers": 0,
    }  # fmt: skip
    weights = sum(p.numel() for p in model.parameters())
    assert found["results"][0]["memory"]["weights"] == pytest.approx(2 * weights, rel=0.01)


@pytest.mark.slow
def test_a_sliding_window_bounds_the_cache(optkit_here: Optkit, tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 512}  # fmt: skip
    held = {}
    for window in (None, 32):
        folder = tmp_path / str(window)
        MistralForCausalLM(MistralConfig(sliding_window=window, **sizes)).save_pretrained(folder)
        asked = ("plan", folder, "--target", "l4", "--precision", "fp16", "--prompt", 300)
        found = optkit_here(*asked, "--new", 100, "--json").result
        assert found["model"]["shape"]["window"] == window
        held[window] = found["results"][0]["memory"]["cache"]
    per_token = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, head size, bytes
    assert held == {None: 400 * per_token, 32: 32 * per_token}


def test_a_model_is_exported_and_fused_first(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.svg"
    asked = ("plan", "--target", "t4", "--train", "lora", "--estimate", "quick", "--plot", plot)
    done = optkit_here(*asked, "--latency", "1ms", "--json", cwd=small, cache=store)
    assert done.code == 0, done.err
    found = done.result
    assert found["model"]["kind"] == "graph" and found["model"]["parameters"] == 676
    assert [row["precision"] for row in found["results"]] == ["fp16", "int8"]
    row = found["results"][0]
    assert [one["batch"] for one in row["latency"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert row["latency"][0]["bounds"] == {"call": "launch"}
    assert row["measured_generation"] is True  # a T4 is among the measurements
    assert row["training"][0]["method"] == "lora"
    assert plot.read_text().startswith("<svg")
    text = optkit_here(*asked, cwd=small, cache=store).out
    assert max(map(len, text.splitlines())) <= 80 and "quick rule" in text


@pytest.mark.slow
def test_whisper_is_planned_whole_and_by_its_parts(
    optkit_here: Optkit, cache: Path, tmp_path: Path
) -> None:
    """Two layers of 4 heads of 8 read 50 tokens of sound: 2 x 2 x 4 x 8 x 50 numbers in 16 bits for
    each sequence; the encoder's cache outputs stay on the device, its 20 x 100 features do not."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=4096, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=50,
        max_target_positions=64, num_mel_bins=20, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    asked = ("plan", tmp_path / "model", "--target", "l4", "--precision", "fp16", "--batch", 1)
    whole = optkit_here(*asked, "--prompt", 4, "--new", 60, "--json").result
    (row,) = whole["results"]
    cache_bytes = 2 * 2 * 4 * 8 * (50 + 64) * 2
    assert whole["model"]["shape"]["crossed"] == 50 and row["memory"]["cache"] == cache_bytes
    assert list(row["latency"][0]["bounds"]) == ["encode", "prefill", "decode"]
    assert row["largest_context"] == 64
    refused = optkit_here(*asked, "--prompt", 4, "--new", 61)
    assert refused.code == 2
    refused.told("4 tokens read and 61 written are 65, but the model has 64 positions")
    part = optkit_here(*asked, "--set", "model.part=encoder", "--json").result
    copied = part["results"][0]["latency"][0]["parts_ms"]["pcie"]
    assert copied == pytest.approx(20 * 100 * 4 / (32e9 * 0.8) * 1e3)


def test_prices_of_the_user_count(optkit_here: Optkit, cache: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100-sxm: {usd_per_hour: 1.0, provider: mine, as_of: 2026-11-20}\n")
    found = optkit_here("plan", *LLAMA, "--target", "h100", "--prices", prices, "--json").result
    assert found["cheapest"]["price"]["provider"] == "mine"


def test_a_load_at_spot_prices_and_on_bought_devices(
    optkit_here: Optkit, cache: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("l4: {purchase_usd: 2600, watts: 90, provider: shop, as_of: 2026-11-01}\n")
    words = ("--target", "l4,h100", "--throughput", 5000, "--load", "30%", "--spot", "60%",
             "--prices", prices, "--electricity", 0.2, "--stored", "4K")  # fmt: skip
    done = optkit_here("plan", *LLAMA, *words)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    text = " ".join(done.out.split())
    assert "at the load batch GPUs use $/hour $/1M interval spot $/1M" in text
    assert "bought for $2,600 (shop, 2026-11-01), 90 W at $0.2 per kWh: pays after" in text
    assert "MB/s from storage" in text and "no other call is faster and costs less" in text
    found = optkit_here("plan", *LLAMA, *words, "--json").result
    assert text.endswith(found["recommendation"]["sentence"])
    assert found["asked"]["load_share"] == pytest.approx(0.3)
    best = found["cheapest"]
    assert best["load"]["throughput"] == pytest.approx(1500)
    assert best["usd_per_hour"] == pytest.approx(best["load"]["usd_per_hour"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--target", "t4", "--precision", "fp8"), 5, "compute capability 8.9"),
        (("--target", "cpu"), 5, "for GPUs only"),
        (("--target", "cpu", "--precision", "int2"), 5, "for GPUs only"),
        (("--target", "l4", "--precision", "nf4"), 5, "ONNX Runtime"),
        (("--target", "l44"), 2, "unknown target"),
        (("--target", "l4", "--precision", "int3"), 2, "unknown precision"),
        (("--target", "l4", "--latency", "soon"), 2, "--latency"),
        (("--target", "l4", "--latency", "0"), 2, "--latency"),
        (("--target", "l4", "--throughput", "nan"), 2, "--throughput"),
        (("--target", "l4", "--throughput", "inf"), 2, "--throughput"),
        (("--target", "l4", "--load", "much"), 2, "--load"),
        (("--target", "l4", "--spot", "100%"), 2, "--spot"),
        (("--target", "l4", "--stored", "nowhere"), 2, "--stored"),
        (("--target", "l4", "--electricity", "0"), 2, "--electricity"),
        (("--target", "l4", "--batch", "0"), 2, "--batch"),
        (("--target", "l4", "--prompt", "100000000"), 5, "does not fit"),
        (("--target", "l4", "--plot", "plot.pdf"), 2, ".html or .svg"),
        (("--target", "l4", "--plot", "/proc/nonexistent/plot.svg"), 8, "/proc/nonexistent"),
        (("--target", "l4", "--prices", "nowhere.yaml"), 5, "no price file"),
        (("--target", "l4", "--heads", 60), 2, "evenly"),
        ((), 2, "--target"),
    ],
)
def test_refusals(optkit_here: Optkit, cache: Path, words: Any, code: int, said: str) -> None:
    done = optkit_here("plan", *LLAMA, *words, "--json")
    assert done.code == code
    done.told(said)
    assert done.result["error"]["message"] and done.result["status"] in ("impossible", "error")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--layers", 80), "decoder need --params"),
        (("--tied",), "decoder need --params"),
        (("--params", "70b"), "needs --layers"),
        (("--params", "many", "--layers", 1), "not a number"),
        (("model.onnx", *LLAMA), "not both"),
    ],
)
def test_half_a_description_is_reported(
    optkit_here: Optkit, cache: Path, words: Any, said: str
) -> None:
    done = optkit_here("plan", *words, "--target", "l4")
    assert done.code == 2
    done.told(said)


def test_from_python(small: Path, store: Path) -> None:
    sizes = optkit.DecoderSizes(8e9, layers=32, kv_heads=8, head_dim=128)
    found = optkit.plan(target="l4", precision="fp8", decoder=sizes, batches=[1])
    assert found.results[0].latency[0].p50_ms > 0
    assert found["results"] == found.to_json()["results"]  # as it was before it was a document
    with pytest.raises(optkit.errors.Impossible, match="compute capability"):
        optkit.plan(target="t4", precision="fp8", decoder=sizes)
    partial = optkit.plan(
        target=["t4", "l4"], precision="fp8", decoder=sizes, batches=[1], partial=True
    )
    assert [row["status"] for row in partial["results"]] == ["impossible", "ok"]
    tied = optkit.plan(target="l4", decoder=replace(sizes, tied=True), batches=[1])
    assert tied["model"]["shape"]["tied"]
    for wrong in ({"training": ["qlra"]}, {"target": ()}):
        with pytest.raises(optkit.errors.UsageError):
            optkit.plan(**{"target": "l4", "decoder": sizes, **wrong})
    for parameters in (0, float("nan"), "8b"):
        with pytest.raises(optkit.errors.UsageError, match="parameters"):
            replace(sizes, parameters=parameters)
    made = optkit.plan(
        small / "small.onnx", target="l4", precision=["fp16"], recipe=small / "optkit.yaml",
        workspace=optkit.Workspace(store),
    )  # fmt: skip
    assert made["model"]["parameters"] == 676
