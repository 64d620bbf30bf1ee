"""A masked transformer as torch exports it: what a mask writes is no data, so every observer gives
the scales of the data, on a processor and for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.sources import torch_module
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, backend
from tests.networks import sqnr
from tests.quantization.workshop import Chain

WIDTH, HEADS, TOKENS = 32, 4, 12
METHODS = ("minmax", "percentile", "entropy", "mse", "auto")
KEEPS = ("attention_mask", "keep")  # named as masks are, and as none is: then no row is padding


class Attention(nn.Module):
    """`bias` [batch, 1, 1, tokens] is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + bias
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Masked(nn.Module):
    """Three masks: of the least float, added; of -inf, chosen; of -1e9, filled in front of `last`,
    whose Linear multiplies it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.last, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        keep = attention_mask[:, None, None, :]
        added = (1.0 - keep.float()) * torch.finfo(torch.float32).min
        chosen = torch.where(keep > 0, 0.0, float("-inf"))
        x = self.embed(ids)
        for layer, bias in zip(self.layers, (added, chosen), strict=True):
            x = layer(x, bias)
        x = x.masked_fill(attention_mask[:, :, None] == 0, -1e9)
        return self.head(torch.relu(self.last(x)))


def feeds(seed: int, count: int, batch: int) -> Iterator[Feed]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        lengths = rng.integers(4, TOKENS, (batch, 1))
        keep = (np.arange(TOKENS) < lengths).astype(np.int64)
        yield {"ids": rng.integers(0, 64, (batch, TOKENS)), "attention_mask": keep}


def named(feed: Feed, keep: str) -> Feed:
    return {keep if name == "attention_mask" else name: array for name, array in feed.items()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked") / "model.onnx"
    torch.manual_seed(0)
    infos = [TensorInfo(name, "int64", ("batch", "tokens")) for name in ("ids", "attention_mask")]
    torch_module.export(
        Masked().eval(),
        [InputSpec(info) for info in infos],
        {"batch": AxisRange(1, 8, 32), "tokens": AxisRange(2, TOKENS, 64)},
        path,
        session=lambda file: backend("onnxruntime").session(file),
        progress=lambda what, fraction: None,
    )
    return path


@pytest.fixture(scope="module")
def chains(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = {}
    for keep in KEEPS:
        model = graph.load(exported)
        (mask,) = (value for value in model.graph.inputs if value.name == "attention_mask")
        mask.name = keep
        given = (named(feed, keep) for feed in feeds(0, 4, 8))
        found[keep] = Chain(tmp_path_factory.mktemp(keep) / "chain", model, given)
    return found


def run(model: Path, feed: Feed, level: str) -> np.ndarray:
    with backend("onnxruntime").session(model, SessionOptions(level=level, threads=1)) as session:
        (output,) = session.run(feed).values()
    return output


@pytest.mark.slow
def test_the_graph_holds_the_masks_that_it_is_meant_to_hold(exported: Path) -> None:
    model = graph.load(exported)
    constants = [graph.array(value) for value in model.graph.initializers.values()]
    floats = np.concatenate([c.reshape(-1) for c in constants if c is not None])
    for fill in (np.finfo(np.float32).min, -np.inf, -1e9):
        assert (floats == np.float32(fill)).any(), fill
    (last,) = (node for node in model.graph if node.name == "last/MatMul")
    filled = last.inputs[0].producer() if last.inputs[0] is not None else None
    assert filled is not None and filled.op_type == "Where"


@pytest.mark.slow
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("where", ["cpu", pytest.param("l4", marks=pytest.mark.slow)])
def test_a_masked_transformer_is_right_by_default(
    keep: str, where: str, chains: dict[str, Any], exported: Path
) -> None:
    made = chains[keep]
    (feed,) = feeds(9, 1, 32)
    real = feed["attention_mask"] > 0
    reference = run(exported, feed, "all")[real]
    assert not real.all() and np.isfinite(reference).all()
    for method in METHODS:
        folder, meta = made.quantize(where, "int8", method=method)
        scales = {name: told["scale"] for name, told in meta["log"]["activations"].items()}
        assert scales and max(scales.values()) < 1e3, (method, scales)
        path = made.deployed(folder) if where == "cpu" else folder / "simulation.onnx"
        level = "all" if where == "cpu" else "basic"
        found = run(path, named(feed, keep), level)[real]
        assert sqnr(reference, found) > 30, method
        floats = set(meta["assignment"]["reasons"])
        assert floats == (set() if keep == KEEPS[0] else {"head/MatMul"}), floats


def test_what_a_fill_makes_behind_a_product_is_reported_by_name(chains: dict[str, Any]) -> None:
    """`last` multiplies -1e9 where no input says what is padding: its result is garbage that looks
    like data, and is left without a range."""
    made = chains["keep"]
    (told,) = [w for w in made.calibrated["warnings"] if "has no range" in w]
    reasons = made.quantize("l4", "int8")[1]["assignment"]["reasons"]
    name = told.split("'")[1]
    assert reasons.keys() == {"head/MatMul"}
    assert reasons["head/MatMul"].startswith(f"what it reads has no range: {name}: ")
    assert "beyond what FP16 can scale" in reasons["head/MatMul"]
    assert not [w for w in chains["attention_mask"].calibrated["warnings"] if "no range" in w]
