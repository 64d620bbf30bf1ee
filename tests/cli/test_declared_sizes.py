"""Sums over a free axis: ranges hold at the declared sizes, or a build says where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from tests.networks import network, sqnr

POOL = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch,t,16] x, float[16,32] w_a, float[32,32] w_b, float[32,8] w_c)
      => (float[batch,8] y) {
      axis = Constant <value = int64[1] {1}> ()
      [embed] a = MatMul (x, w_a)
      r = Relu (a)
      s = ReduceSum <keepdims = 0> (r, axis)
      [first] b = MatMul (s, w_b)
      c = Relu (b)
      [last] y = MatMul (c, w_c)
    }"""
RECIPE = """
name: pool
model: {path: model.onnx}
axes:
  batch: {min: 1, opt: 2, max: 4}
  t: {min: 16, opt: 64, max: 1024}
calibration: {source: arrays, samples: 64, args: {path: samples.npz}}
"""


NETS = """
import torch
from torch import nn

class Pooled(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.first, self.second, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        x = self.first(x)
        if self.how == "mean":
            x = torch.relu(x).mean(1)
        if self.how == "sum":
            x = torch.tanh(x).sum(1)
        if self.how == "max":
            x = x.max(1).values
        if self.how == "norm":
            x = nn.functional.instance_norm(x.transpose(1, 2))[:, :, -1]
        if self.how == "encoder":
            x = self.encoder(x).mean(1)
        return self.last(torch.relu(self.second(x)))

def create(how):
    torch.manual_seed(0)
    return Pooled(how).eval()
"""
OF_MODULE = """
name: pooled
model: {factory: "nets.py:create", args: {how: HOW}}
inputs: {x: {dtype: float32, shape: [batch, t, 16]}}
axes:
  batch: {min: 1, opt: 2, max: 4}
  t: {min: 8, opt: 64, max: 1024}
calibration: {source: arrays, samples: 64, args: {path: samples.npz}}
"""


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    graph.save(network(POOL), tmp_path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((64, 64, 16)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x)
    (tmp_path / "optkit.yaml").write_text(RECIPE)
    return tmp_path


def fidelity_at(
    length: int, place: Path, candidate: Path, output: str = "y", samples: int = 32
) -> float:
    """On samples that nobody has calibrated with."""
    shape = (samples, length, 16)
    x = np.random.default_rng(length).standard_normal(shape).astype(np.float32)
    runs = []
    for file in (place / "model.onnx", candidate / "model.onnx"):
        with simulator().session(file, SessionOptions(1)) as session:
            runs.append(np.asarray(session.run({"x": x})[output]))
    return sqnr(*runs)


def test_a_sum_pool_keeps_its_fidelity_from_a_quarter_to_sixteen_times_the_length(
    pool: Path, store: Path, optkit_here: Any
) -> None:
    done = optkit_here("quantize", "--target", "cpu", "--precision", "int8", "--out", "q",
                       cwd=pool, cache=store)  # fmt: skip
    assert done.code == 0, done.err
    assert "one scale for all sizes leaves" in done.err
    at = {length: fidelity_at(length, pool, pool / "q") for length in (16, 64, 256, 1024)}
    # a sum of 16 items has twice the noise of one of 64 beside its signal, wherever ranges are
    assert at[64] > 38 and at[256] > at[64] - 3 and at[1024] > at[64] - 3 and at[16] > at[64] - 7


def test_eval_tells_the_fidelity_at_both_ends_and_between(
    pool: Path, store: Path, optkit_here: Any
) -> None:
    asked = ("eval", "--target", "cpu", "--precision", "int8", "--json")
    done = optkit_here(*asked, cwd=pool, cache=store)
    assert done.code == 0, done.err
    sizes = json.loads(done.out)["sizes"]
    assert [end["sizes"] for end in sizes["ends"]] == [{"t": 16}, {"t": 1024}]
    assert [(a["axis"], a["samples"], a["declared"]) for a in sizes["axes"]] == [
        ("t", [64, 64], [16, 1024])
    ]
    assert [(one["sizes"], one["distinct"]) for one in sizes["between"]] == [
        ({"t": 32}, None), ({"t": 256}, 16)
    ]  # fmt: skip
    tried = (*sizes["ends"], *sizes["between"])
    assert all(one["fidelity"]["sqnr_db"] > 33 for one in tried)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["mean", "sum", "max", "norm", "encoder"])
def test_from_an_eighth_to_sixteen_times_the_length_fidelity_holds_or_is_told(
    pool: Path, store: Path, optkit_here: Any, how: str
) -> None:
    """On so many samples that rare clipped values weigh what they weigh: with 32 samples, the same
    graph has 32 to 37 dB at one length."""
    (pool / "nets.py").write_text(NETS)
    (pool / "optkit.yaml").write_text(OF_MODULE.replace("HOW", how))
    for command in (("export", "--out", "f"), ("quantize", "--target", "cpu", "--precision", "int8",
                                               "--out", "q")):  # fmt: skip
        assert optkit_here(*command, cwd=pool, cache=store).code == 0
    asked = ("eval", "--target", "cpu", "--precision", "int8", "--json")
    sizes = json.loads(optkit_here(*asked, cwd=pool, cache=store).out)["sizes"]
    at = {
        length: fidelity_at(length, pool / "f", pool / "q", "output", 65536 // max(length, 64))
        for length in (8, 16, 23, 32, 64, 128, 256, 512, 1024)
    }
    tried = {one["sizes"]["t"]: one for one in (*sizes["ends"], *sizes["between"])}
    told = {length: one["fidelity"]["sqnr_db"] for length, one in tried.items()}
    assert sorted(told) == [8, 23, 256, 1024]
    for found in at.values():
        assert found > at[64] - 3 or sizes["verdict"] == "suspect", (at, told)
    for length, found in told.items():  # values that calibration has seen are clipped less often
        reused = tried[length]["distinct"] is not None
        assert at[length] - 3 < found < at[length] + (5 if reused else 3), (at, told)


@pytest.mark.slow
def test_a_build_that_loses_fidelity_at_a_declared_size_is_suspect(
    pool: Path, store: Path, optkit_here: Any
) -> None:
    """The recipe asks for one scale, whatever the sizes."""
    asked = ("build", "--target", "cpu", "--precision", "int8", "--json", "--out", "art",
             "--set", "quantization.nodes={'*': int8}")  # fmt: skip
    done = optkit_here(*asked, cwd=pool, cache=store)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["sizes"]["verdict"] == "suspect"
    [finding] = [one for one in result["sizes"]["findings"] if one["sizes"] == {"t": 1024}]
    assert finding["measured"] < finding["expected"] - 3
    told = f"the SQNR is {finding['measured']:.1f} dB at t=1,024, and {finding['expected']:.1f} dB"
    assert told in finding["what"] and "smaller maximum" in finding["hint"]
    assert f"suspect: {told}" in done.err
    report = pool / result["artifact"]
    for name in ("report.md", "report.html"):
        assert "The fidelity is suspect at declared sizes." in (report / name).read_text()
    strict = optkit_here(*asked[:-1], asked[-1], "--strict", cwd=pool, cache=store)
    assert strict.code == 3
