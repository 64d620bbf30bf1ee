"""The studies of few bits: rules that they change hold inside them; their formats are those of the
specifications."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from optkit.backends.onnxruntime import OnnxRuntime
from optkit.devices import target
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS
from tests.scripts import ROOT, script

RULES = script("experiments/fourbit/cpu_rules.py")


def rules(name: str) -> PlacementRules:
    return OnnxRuntime().rules(target("cpu"), PRECISIONS[name])


def test_rules_are_changed_for_one_precision_and_put_back() -> None:
    before = {name: rules(name) for name in ("int4", "int8-weight-only", "int8")}
    with (
        pytest.raises(RuntimeError, match="inside"),
        RULES.changed_rules("int4", lambda plain: replace(plain, nbits_accuracy=None)),
    ):
        assert rules("int4") == replace(before["int4"], nbits_accuracy=None) != before["int4"]
        assert rules("int8-weight-only") == before["int8-weight-only"]
        assert rules("int8") == before["int8"]
        raise RuntimeError("inside")
    assert {name: rules(name) for name in before} == before


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script that imports its neighbours, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments/fourbit"))
    return lambda name: script(f"experiments/fourbit/{name}.py")


@pytest.mark.parametrize(
    ("name", "code", "largest"),
    [("MXFP8", ml_dtypes.float8_e4m3fn, 448.0), ("MXFP4", ml_dtypes.float4_e2m1fn, 6.0)],
)
def test_microscaling_is_that_of_the_specification(
    name: str, code: type, largest: float, study: Any
) -> None:
    """Against the casts of ml_dtypes, block by block."""
    microscaling = study("microscaling")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((9, 64)) * 2.0 ** rng.integers(-30, 30, (9, 1))).astype(np.float32)
    x[3, :32] = 0
    held = microscaling.microscaled(x, microscaling.MX[name])
    for row in range(9):
        for start in (0, 32):
            block = x[row, start : start + 32]
            peak = float(np.abs(block).max()) or 1.0
            most = np.floor(np.log2(largest))
            scale = np.float32(2.0 ** (np.floor(np.log2(peak)) - most))
            assert scale == np.float32(scale.astype(ml_dtypes.float8_e8m0fnu))
            codes = np.clip(block / scale, -largest, largest).astype(code)
            assert np.array_equal(held[row, start : start + 32], codes.astype(np.float32) * scale)


@pytest.mark.parametrize(("fit", "magnitudes"), [("ternary", 2), ("binary", 1), ("billm", 4)])
def test_weights_of_one_bit_have_so_many_magnitudes_and_compensate(
    fit: str, magnitudes: int, study: Any
) -> None:
    one_bit = study("one_bit")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((512, 128)) @ rng.standard_normal((128, 128))
    h, w = x.T @ x / len(x), rng.standard_normal((128, 10))
    plain, solved = (
        one_bit.solved(w, h, getattr(one_bit, fit), compensate=compensate).numbers
        for compensate in (False, True)
    )
    lost = [np.trace((w - held).T @ h @ (w - held)) for held in (plain, solved)]
    assert lost[1] < 0.8 * lost[0]
    for block in solved.reshape(2, 64, 10).transpose(0, 2, 1).reshape(20, 64):
        assert len(np.unique(np.abs(block).round(5))) <= magnitudes
    if fit != "billm":
        assert one_bit.kernel_error(solved) < 1e-5


def test_four_over_six_takes_the_better_of_both(study: Any) -> None:
    nvfp4 = study("nvfp4")
    w = np.full((32, 1), 3.0, np.float32)
    w[0], w[16:], w[16] = 4.0, 3.9, 6.0  # 4 and 3 are codes; 3.9 is nearer to 4 than to 4.5
    scale = nvfp4.four_over_six(w, np.asarray(1 / 256, np.float32))
    assert (scale.scale[:, 0] * 256).tolist() == [256.0, 256.0]


def test_learned_codes_are_those_of_gptq_until_something_is_gained(study: Any) -> None:
    """What is worse on the batch that is not trained is not kept. Before the first codes there are
    no errors."""
    learned = study("learned_codes")
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    net = torch.nn.Sequential(block, torch.nn.Linear(32, 8)).eval()
    network = learned.Network(net, ["0"], {"0.2": "0"}, "1")
    batches = [(x,) for x in torch.randn(8, 64, 64)]
    fmt = study("learned").INT4
    start = learned.of_layers(network, fmt, batches, 2)
    found = learned.in_order(network, fmt, batches, alpha=0.0)
    assert np.array_equal(found.codes["0.0"].codes, start.codes["0.0"].codes)

    def noise(chosen: Any, part: int) -> float:
        with torch.no_grad():
            y, exact = chosen.applied(network)(*batches[part]), net(*batches[part])
        return float(learned.error(y, exact))

    trained = learned.of_the_network(network, start, batches, 20)
    assert noise(trained, 0) <= noise(start, 0) * (1 + 1e-5)  # the first one is not trained
    better = learned.in_order(network, fmt, batches)
    assert np.mean([noise(better, n) for n in range(8)]) < np.mean(
        [noise(start, n) for n in range(8)]
    )


@pytest.mark.slow
def test_errors_of_the_layers_before_are_made_up_for_in_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Any
) -> None:
    in_order = study("in_order")
    monkeypatch.setattr(in_order, "FILE", tmp_path / "rows.json")
    rows: list[dict[str, Any]] = []
    in_order.measure(in_order.digits_vit(tmp_path), "vit", 32, "int4", tmp_path / "build", rows)
    plain, best = rows
    assert plain["gain_db"] == [0.0, 0.0, 0.0]
    assert best["gain_db"][1] > 0.3
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == rows
