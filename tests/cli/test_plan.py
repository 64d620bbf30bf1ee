"""`optkit plan`: from a description, from a model, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    assert row["measured_generation"] is False  # no Turing among the measurements
    assert row["training"][0]["method"] == "lora"
    assert plot.read_text().startswith("<svg")
    text = optkit_here(*asked, cwd=small, cache=store).out
    assert max(map(len, text.splitlines())) <= 80 and "quick rule" in text


def test_prices_of_the_user_count(optkit_here: Optkit, cache: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100-sxm: {usd_per_hour: 1.0, provider: mine, as_of: 2026-11-20}\n")
    found = optkit_here("plan", *LLAMA, "--target", "h100", "--prices", prices, "--json").result
    assert found["cheapest"]["price"]["provider"] == "mine"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--target", "t4", "--precision", "fp8"), 5, "compute capability 8.9"),
        (("--target", "cpu"), 5, "fitted to NVIDIA GPUs alone"),
        (("--target", "l4", "--precision", "nf4"), 5, "ONNX Runtime"),
        (("--target", "l44"), 2, "unknown target"),
        (("--target", "l4", "--precision", "int3"), 2, "unknown precision"),
        (("--target", "l4", "--latency", "soon"), 2, "--latency"),
        (("--target", "l4", "--latency", "0"), 2, "--latency"),
        (("--target", "l4", "--batch", "0"), 2, "--batch"),
        (("--target", "l4", "--plot", "plot.pdf"), 2, ".html or .svg"),
        (("--target", "l4", "--plot", "/proc/nonexistent/plot.svg"), 8, "cannot be written"),
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
        (("--layers", 80), "they need --params"),
        (("--params", "70b"), "needs --layers"),
        (("--params", "many", "--layers", 1), "no such number"),
        (("model.onnx", *LLAMA), "exclude each other"),
    ],
)
def test_half_a_description_is_told(
    optkit_here: Optkit, cache: Path, words: Any, said: str
) -> None:
    done = optkit_here("plan", *words, "--target", "l4")
    assert done.code == 2
    done.told(said)


def test_from_python(small: Path, store: Path) -> None:
    sizes = {"parameters": 8e9, "layers": 32, "kv_heads": 8, "head_dim": 128}
    found = optkit.plan(target="l4", precision="fp8", decoder=sizes, batches=[1])
    assert found["results"][0]["latency"][0]["p50_ms"] > 0
    json.dumps(found)
    with pytest.raises(optkit.errors.Impossible, match="compute capability"):
        optkit.plan(target="t4", precision="fp8", decoder=sizes)
    with pytest.raises(optkit.errors.UsageError, match="kv_heads"):
        optkit.plan(target="t4", decoder={"parameters": 8e9, "layers": 32})
    for wrong in ({"training": ["qlra"]}, {"decoder": {**sizes, "layers": 0}}, {"target": ()}):
        with pytest.raises(optkit.errors.UsageError):
            optkit.plan(**{"target": "l4", "decoder": sizes, **wrong})
    made = optkit.plan(
        small / "small.onnx", target="l4", precision=["fp16"], recipe=small / "optkit.yaml",
        cache=store,
    )  # fmt: skip
    assert made["model"]["parameters"] == 676
