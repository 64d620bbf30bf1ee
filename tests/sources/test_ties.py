"""Models that take the best places of a picture: equal scores have one order in the comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.sources import program
from optkit.craft.sources.inner_values import orders, outputs_in_order
from optkit.craft.sources.ties import lower_index_first
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange
from optkit.ground.runtimes import backend
from tests.sources.test_torch_module import export, spec


class Queries(nn.Module):
    """As RT-DETR: the places with the best scores are the rows. The scores have few values."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = x.sum(-1).sign()
        best = torch.topk(scores, 20, dim=1)[1]
        return {"rows": x.gather(1, best.unsqueeze(-1).expand(-1, -1, x.shape[-1]))}


class Drifting(Queries):
    calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return super().forward(x + self.calls)


def test_equal_scores_are_in_the_order_of_the_graph(tmp_path: Path) -> None:
    log = export(Queries(), tmp_path / "m.onnx", spec("x", "batch", 200, 4))
    assert len(log.checks) >= 2 and all(one.errors == {"rows": 0.0} for one in log.checks)


def test_equal_scores_of_a_saved_program(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    saved = torch.export.export(Queries(), (torch.randn(4, 200, 4),), dynamic_shapes=shapes)
    torch.export.save(saved, tmp_path / "m.pt2")
    log = program.export(
        tmp_path / "m.pt2",
        (),
        {"batch": AxisRange(1, 4, 8)},
        tmp_path / "m.onnx",
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None,
    )
    assert len(log.checks) >= 2 and all(one.errors == {"rows": 0.0} for one in log.checks)


def test_a_choice_that_is_wrong_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="keeps a state between calls"):
        export(Drifting(), tmp_path / "m.onnx", spec("x", "batch", 200, 4))


class Rounded(nn.Module):
    """The scores are sums of the same numbers in other orders, so rounding alone orders them. As in
    YOLO26, a second choice is among the chosen ones."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        orders = [torch.randperm(96, generator=generator) for _ in range(200)]
        self.register_buffer("orders", torch.stack(orders))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, self.orders]
        best = torch.topk(rows.sum(-1), 20, dim=1)[1]
        chosen = rows.gather(1, best.unsqueeze(-1).expand(-1, -1, 96))
        again = torch.topk(chosen.flip(-1).sum(-1), 10, dim=1)[1]
        return chosen.gather(1, again.unsqueeze(-1).expand(-1, -1, 96))


def test_rounding_may_order_scores(tmp_path: Path) -> None:
    log = export(Rounded(), tmp_path / "m.onnx", spec("x", "batch", 96))
    assert any("equal but for rounding" in one for one in log.warnings)


def _like(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, atol=1e-3))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([1, 0], [2.0, 2.0001]),  # equal but for rounding
        ([0, 2], [2.0001, 2.0]),  # another value
        ([0, 0], [2.0001, 2.0]),  # one value twice
        ([0, 9], [2.0001, 2.0]),  # no value
        ([0], [2.0001, 2.0]),  # too few
    ],
)
@pytest.mark.parametrize("sorts", [False, True])
def test_an_order_is_taken_if_it_is_one(given: list[int], found: list[float], sorts: bool) -> None:
    class Best(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if sorts:
                return x.gather(1, x.sort(dim=1, descending=True)[1][:, :2])
            return x.gather(1, x.topk(2)[1])

    x = np.array([[2.0001, 2.0, 1.0]], np.float32)
    traced = torch.export.export(Best(), (torch.from_numpy(x),))
    (name,) = orders(traced)
    rest = [place for place in range(3) if place not in given][: 3 - len(given)]
    indices = np.array([given + rest if sorts and len(given) > 1 else given])
    (values,) = outputs_in_order(
        traced, {"x": x}, [spec("x", 1, 3)], {name: indices}, _like
    ).values()
    np.testing.assert_array_equal(values, np.array([found], np.float32))


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_equal_values(largest: bool) -> None:
    saved = torch.export.export(Queries(), (torch.randn(4, 200, 4),))
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0, 2.0]])
    with lower_index_first(saved):
        values, indices = torch.topk(x, 3, largest=largest)
        single, place = torch.topk(torch.tensor(7.0), 1)
    assert indices.tolist() == [[0, 2, 4] if largest else [1, 3, 0]]
    assert torch.equal(values, x.gather(1, indices))
    assert (float(single), int(place)) == (7.0, 0)


@pytest.mark.slow
def test_rt_detr_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1],
        layer_type="basic", out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[32, 64, 128],
        encoder_ffn_dim=64, encoder_attention_heads=4, d_model=32, decoder_ffn_dim=64,
        decoder_in_channels=[32, 32, 32], decoder_layers=2, decoder_attention_heads=4,
        num_queries=50, num_labels=4,
    )  # fmt: skip
    model = transformers.RTDetrForObjectDetection(config)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            returned = self.model(pixel_values=images)
            return {"logits": returned.logits, "pred_boxes": returned.pred_boxes}

    log = export(Detector(), tmp_path / "m.onnx", spec("images", "batch", 3, 64, 64))
    assert [one.shape for one in log.outputs] == [("batch", 50, 4)] * 2
