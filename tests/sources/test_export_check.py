"""Where and on what an export is compared, and what counts as equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from optkit.craft.sources import export_check, in_float64, program_to_onnx, torch_module
from optkit.craft.sources.compared_sizes import compared_sizes
from optkit.craft.sources.comparison_trials import trials
from optkit.craft.sources.export_check import difference
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange, Feed, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.data import mask_styles
from optkit.ground.runtimes import backend

BATCH = {"batch": AxisRange(1, 2, 4)}
SIDES = BATCH | {"h": AxisRange(72, 104, 160), "w": AxisRange(72, 104, 160)}


def spec(name: str, *shape: int | str, dtype: str = "float32", **more: Any) -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape), **more)


def export(module: nn.Module, out: Path, *specs: InputSpec, **options: Any) -> ExportLog:
    return torch_module.export(
        module.eval(), specs, options.pop("axes", BATCH), out / "m.onnx",
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None, **options,
    )  # fmt: skip


ranges = st.tuples(st.integers(1, 200), st.integers(0, 200), st.integers(0, 200)).map(
    lambda t: AxisRange(t[0], t[0] + min(t[1:]), t[0] + max(t[1:]))
)


@given(st.dictionaries(st.sampled_from(["batch", "a", "b", "c"]), ranges))
def test_sizes_are_in_their_ranges_and_reach_the_ends(axes: dict[str, AxisRange]) -> None:
    found = compared_sizes(axes, "batch")
    assert all(sizes.keys() == axes.keys() for sizes in found)
    for name, axis in axes.items():
        sizes = {one[name] for one in found}
        assert {axis.min, axis.max} <= sizes <= set(range(axis.min, axis.max + 1))
    assert found[0] == {name: axis.min for name, axis in axes.items()}
    assert all(one not in found[:at] for at, one in enumerate(found))


def test_sizes_differ_behind_strides_and_axes_move_apart() -> None:
    found = compared_sizes(SIDES, "batch")
    for axis in ("h", "w"):
        for stride in (8, 16, 32):
            assert len({one[axis] // stride for one in found}) >= 3
    assert {(72, 160), (160, 72)} <= {(one["h"], one["w"]) for one in found}
    moved = [(b["h"] - a["h"], b["w"] - a["w"]) for a, b in pairwise(found)]
    assert sum((dh > 0) is not (dw > 0) for dh, dw in moved) >= 3


def test_sizes_are_multiples_where_a_program_takes_only_these() -> None:
    specs = [spec("x", "batch", 3, "h", "w")]
    found = list(trials(specs, SIDES | {"h": replace(SIDES["h"], multiple=8)}))
    assert all(trial.sizes["h"] % 8 == 0 for trial in found)
    assert {trial.sizes["w"] % 8 for trial in found} > {0}


def test_samples_are_compared_at_their_own_sizes_first() -> None:
    specs = [spec("ids", "batch", "t", dtype="int64"), spec("mask", "batch", "t", dtype="bool")]
    rows = [{"ids": np.arange(5, 5 + n)[None], "mask": np.ones((1, n), bool)} for n in (7, 7, 12)]
    axes = BATCH | {"t": AxisRange(4, 8, 16)}
    found = list(trials(specs, axes, rows))
    assert [trial.sizes for trial in found[:2]] == [{"batch": 2, "t": 7}, {"batch": 1, "t": 12}]
    assert {trial.values for trial in found} == {"samples"}
    for trial in found:
        feed = trial.feed()
        assert feed["ids"].shape == (trial.sizes["batch"], trial.sizes["t"])
        assert set(np.unique(feed["ids"])) <= set(range(5, 17))
    (most,) = [one.feed() for one in found if one.sizes == {"batch": 4, "t": 16}]
    assert len({tuple(row) for row in most["ids"].tolist()}) > 1  # no batch of one row


def test_masks_are_filled_in_several_ways() -> None:
    specs = [spec("x", "batch", "t", 8), spec("src_key_padding_mask", "batch", "t", dtype="bool")]
    axes = BATCH | {"t": AxisRange(4, 8, 16)}
    found = {one.masks: one.feed()["src_key_padding_mask"] for one in trials(specs, axes, ())}
    prefix = found["prefix"]  # true is padding: false comes first
    assert prefix.any() and not prefix[:, 0].any() and (prefix[:, 1:] >= prefix[:, :-1]).all()
    assert not found["all"].any()
    assert found["none"][0].all() and not found["none"][1:].all(axis=1).any()
    assert not found[None].all(axis=1).any()  # each row of a random mask has a token


finite = st.floats(-1e3, 1e3, width=32)


@given(st.lists(finite, min_size=1, max_size=30), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_equal_infinities_and_nans_are_equal(values: list[float], odd: float) -> None:
    a = np.array([*values, odd], np.float32)
    assert difference(a, a.copy()) == (0.0, None)
    b = a.copy()
    b[-1] = values[0]
    assert difference(a, b)[1] is not None and difference(b, a)[1] is not None


def test_scores_beside_boxes_have_a_limit_of_their_own() -> None:
    random = np.random.default_rng(0)
    boxes, scores = random.uniform(0, 640, (1, 100, 4)), random.uniform(0, 1, (1, 100, 80))
    a = np.concatenate([boxes, scores], axis=2).astype(np.float32)
    b = a.copy()
    b[..., 7] += 0.2
    for expected, found in ((a, b), (a.transpose(0, 2, 1), b.transpose(0, 2, 1))):
        problem = difference(expected, found)[1]
        assert problem is not None and "at index 7 of axis" in problem
    assert difference(a, a * np.float32(1 + 1e-5))[1] is None


class InPlace(nn.Module):
    """`scale`: of the input, which is changed in place."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.fc = scale, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.sub_(0.45)
        x /= self.scale
        return self.fc(x), x


@pytest.mark.parametrize("scale", [0.22, 255.0])
def test_a_forward_that_works_in_place_is_compared_with_what_it_was_given(
    scale: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = InPlace(scale)
    export(module, tmp_path, spec("x", "batch", 4))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with backend("onnxruntime").session(tmp_path / "m.onnx") as session:
        found = session.run({"x": x})
    expected = module(torch.from_numpy(x.copy()))
    for name, tensor in zip(("output_0", "output_1"), expected, strict=True):
        np.testing.assert_allclose(found[name], tensor.detach(), atol=1e-5)


class Counting(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"steady": x * 1, "drifting": x * self.calls}


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x)
        return x + noise


@pytest.mark.parametrize(
    ("module", "told", "line", "hint"),
    [
        (
            Counting(),
            r"'drifting': .*keeps a state .* calls \(",
            "self.calls += 1",
            "the new state",
        ),
        (Averaging(), r"keeps a state .* mean \(", "self.mean.mul_", "the new state"),
        (Noisy(), "draws random numbers", "noise = torch.rand_like(x)", "forward(x, noise)"),
    ],
)
def test_state_and_noise_are_named_with_their_lines(
    module: nn.Module, told: str, line: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportFailed, match=told) as caught:
        export(module, tmp_path, spec("x", "batch", 4))
    assert line in caught.value.line and hint in str(caught.value.hint)


class Cancelling(nn.Module):
    """Two products that are equal but for the order of their sums: only rounding is left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.linspace(-1, 1, 300).reshape(300, 1) * 1e3
        return x @ w - x.flip(1) @ w.flip(0)


def test_what_float32_cannot_represent_is_rounding(tmp_path: Path) -> None:
    log = export(Cancelling(), tmp_path, spec("x", "batch", 300))
    notes = [note for check in log.checks for note in check.notes]
    assert notes and all("beside float64 torch is off by" in note for note in notes)


@pytest.fixture
def relu_is_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The translation of Relu is wrong: it does nothing."""
    write = program_to_onnx.write

    def wrong(model: Any, out: Path) -> None:
        for node in model.graph:
            if node.op_type == "Relu":
                node.op_type = "Identity"
        write(model, out)

    monkeypatch.setattr(program_to_onnx, "write", wrong)
    yield


class Mixed(Cancelling):
    """A column that is rounding alone, beside one that is exact."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([1e3 * super().forward(x), torch.relu(x[:, :1])], 1)


@pytest.mark.usefixtures("relu_is_lost")
def test_the_rounding_of_one_column_does_not_excuse_another(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="differs from torch"):
        export(Mixed(), tmp_path, spec("x", "batch", 300))


def test_float64_replaces_the_types_that_code_fixes() -> None:
    net = nn.Linear(4, 3).bfloat16()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)

    def run(module: nn.Module, feed: Feed) -> Feed:
        y = module(torch.from_numpy(feed["x"]).to(torch.bfloat16)).float() + torch.ones(
            3, dtype=torch.float16
        )
        return {"y": y.detach().numpy()}

    found = in_float64.exact(net, run, {"x": x})
    weight, bias = (one.detach().double().numpy() for one in (net.weight, net.bias))
    assert found is not None
    np.testing.assert_allclose(found["y"], x.astype(float) @ weight.T + bias + 1, rtol=1e-12)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.relu(y)
        return self.second(y)


@pytest.mark.usefixtures("relu_is_lost")
def test_the_first_value_that_differs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"begins at 'relu' \(aten.relu.default\)") as caught:
        export(Steps(), tmp_path, spec("x", "batch", 4))
    assert "y = torch.relu(y), at batch=" in str(caught.value.where)
    assert "random" not in str(caught.value) and "state" not in str(caught.value)


@pytest.mark.usefixtures("relu_is_lost")
def test_weights_that_are_freed_leave_the_cause_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_check, "KEPT", 0)
    with pytest.raises(ExportFailed, match="too large to be in memory twice") as caught:
        export(Steps(), tmp_path, spec("x", "batch", 4), owned=True)
    assert caught.value.hint is None


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, padding: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.layers(x, mask=mask, src_key_padding_mask=padding)


def test_padding_of_torchs_encoder_is_computed_like_all_places(tmp_path: Path) -> None:
    axes = BATCH | {"t": AxisRange(4, 8, 12)}
    specs = spec("x", "batch", "t", 16), spec("padding", "batch", "t", dtype="bool")
    log = export(Encoder(), tmp_path, *specs, axes=axes)
    assert {"prefix", "all", "none"} <= {check.masks for check in log.checks}


@pytest.mark.slow
def test_a_mask_of_floats_with_infinities(tmp_path: Path) -> None:
    axes = BATCH | {"t": AxisRange(4, 8, 12)}
    specs = spec("x", "batch", "t", 16), spec("mask", "t", "t")
    log = export(Encoder(), tmp_path, *specs, axes=axes)
    assert "infinite" in {check.masks for check in log.checks}
    x = np.random.default_rng(0).standard_normal((2, 6, 16)).astype(np.float32)
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    sample = {"x": x[:1], "mask": mask}
    log = export(Encoder(), tmp_path, *specs, axes=axes, samples=[sample])
    assert {check.values for check in log.checks} == {"samples"}


def test_what_costs_too_much_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_check, "_BYTES", 4096)
    log = export(nn.Linear(4, 4), tmp_path, spec("x", "batch", 4),
                 axes={"batch": AxisRange(1, 2, 4096)})  # fmt: skip
    assert [one.sizes for one in log.left_out] == [{"batch": 4096}]
    assert "memory" in log.left_out[0].reason
    assert [check.sizes["batch"] for check in log.checks] == [1, 3]


def test_a_size_at_which_only_the_graph_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = program_to_onnx.write

    def fixed(model: Any, out: Path) -> None:
        node = model.graph.outputs[0].producer()
        shape = graph.add_constant(model.graph, "shape", np.array([1, 8]))
        node.replace_input_with(1, shape)
        write(model, out)

    monkeypatch.setattr(program_to_onnx, "write", fixed)
    with pytest.raises(ExportFailed, match="does not run where torch does") as caught:
        export(nn.Flatten(), tmp_path, spec("x", "batch", 2, 4))
    assert "batch=3" in str(caught.value.where)


def test_styles_of_masks_by_name_and_dtype() -> None:
    assert mask_styles.styles([spec("x", "batch", 4)]) == []
    assert mask_styles.styles([spec("keep", "batch", 4, dtype="bool")]) == ["prefix", "all", "none"]
    assert mask_styles.styles([spec("attn_mask", "batch", 4)]) == ["infinite"]
    assert mask_styles.styles([spec("attention_mask", "batch", 4, dtype="int64", range=(0, 1))])
    assert not mask_styles.styles([spec("ids", "batch", 4, dtype="int64", range=(0, 1))])
