"""Conditions of torch.export on sizes, checked for every size of their range."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from optkit.craft.sources import guards
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange
from tests.sources.test_torch_module import export, spec

SIZE = "L['x'].size()[1]"


def message(*conditions: str, low: str = "1600 <= ", high: int = 4000) -> str:
    bounds = f"{low}samples <= {high}"
    lines = [f"  - Not all values of samples = {SIZE} in the specified range {bounds} satisfy the "
             f"generated guard {condition}." for condition in conditions]  # fmt: skip
    return "\n".join(["Constraints violated (samples)!", *lines, "Suggested fixes:"])


def holds(text: str, **multiples: int) -> bool:
    return guards.hold(text, multiples)


def test_what_holds_for_every_size_is_accepted() -> None:
    squared = f"({SIZE} // 320)*({SIZE} // 320)"
    assert holds(message(f"({SIZE} // 320) != {squared}", f"{squared} >= ({SIZE} // 320)"))
    assert holds(message(f"{SIZE} >= 1", low=""))
    assert holds(message(f"{SIZE} // 6 >= 1 and {SIZE} // 6 <= {SIZE} // 3 - 1"))
    solved = (
        "Specializations unexpectedly required (samples)! For more information, run with x."
        f"\n  - solving the guards generated for samples = {SIZE} resulted in a value of 8."
    )
    text = message(f"((-1) + 2*{SIZE}) // {SIZE} == 1")
    assert holds(text.replace("\nSuggested", solved + "\nSuggested"))
    half = f"math.trunc(0.5*torch.sym_float({SIZE}))"
    assert holds(message(f"{half} >= 2", f"2*{half} != {SIZE} + 2"))
    assert not holds(message(f"{half} != 900"))


@pytest.mark.parametrize(
    "text",
    [
        message(f"{SIZE} != 2000"),
        message(f"{SIZE} >= 1", f"{SIZE} < 4000"),
        message(f"{SIZE} >= 1 and {SIZE} < 4000"),
        message(f"{SIZE} >= 1 or {SIZE} < 4000"),
        message(f"5 // ({SIZE} - 1700) != 9"),
        message(f"{SIZE} >= 1", high=1 << 40),
        message(f"{SIZE} >= __import__('os').getpid()"),
        message(f"1 <= {SIZE} <= 5000"),
        message(f"{SIZE} >= other"),
        message(f"{SIZE} >="),
        "  - You marked batch as dynamic but your code specialized it to be a constant (2).",
        "another error",
        "",
    ],
)
def test_what_fails_or_is_not_understood_is_not(text: str) -> None:
    assert not holds(text)


def test_what_holds_for_the_multiples_of_a_number() -> None:
    """Maps behind strides of 2 and 4 meet again if the size is a multiple of 4."""
    text = message(f"2*({SIZE} // 4) == {SIZE} // 2", low="", high=64)
    assert holds(text, samples=4) and holds(text, samples=8)
    assert not holds(text) and not holds(text, samples=6) and not holds(text, other=4)


@given(st.integers(1, 9), st.integers(-9, 9), st.integers(1, 30), st.integers(0, 30))
def test_it_is_a_check_of_all_sizes(step: int, offset: int, low: int, more: int) -> None:
    text = message(f"{SIZE} // {step} + {offset} > 3", low=f"{low} <= ", high=low + more)
    wanted = all(n // step + offset > 3 for n in range(low, low + more + 1))
    assert holds(text) == wanted


def test_a_feature_map_of_one_place_is_like_all_others(tmp_path: Path) -> None:
    """torch asks whether the size of the map is 1, which is so for pictures of 5 to 8 pixels."""
    side = AxisRange(5, 20, 40)
    net = nn.Sequential(nn.Conv2d(2, 3, 5, 4), nn.ReLU(), nn.Upsample(scale_factor=2))
    axes = {"batch": AxisRange(1, 2, 3), "h": side, "w": side}
    export(net, tmp_path / "model.onnx", spec("x", "batch", 2, "h", "w"), axes=axes)


class Pieces(nn.Module):
    """Batch norm of pieces of the batch, as in TabNet; with a small batch there is only one."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.norm, self.most = nn.BatchNorm1d(4), most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = x.chunk(math.ceil(x.shape[0] / self.most), 0)
        return torch.cat([self.norm(piece) for piece in pieces])


def test_a_batch_that_is_one_piece_may_have_any_size(tmp_path: Path) -> None:
    axes = {"batch": AxisRange(1, 8, 32)}
    export(Pieces(128), tmp_path / "model.onnx", spec("x", "batch", 4), axes=axes)


def test_a_number_of_pieces_that_depends_on_the_batch_is_named(tmp_path: Path) -> None:
    axes = {"batch": AxisRange(1, 8, 32)}
    with pytest.raises(ExportFailed, match=r"ceil\(.* / 4\) == 2") as caught:
        export(Pieces(4), tmp_path / "model.onnx", spec("x", "batch", 4), axes=axes)
    assert "cuts the axis into pieces" in str(caught.value.hint)
    assert "from 5 to 8" in str(caught.value.hint)


def test_one_chunk_is_asked_by_its_name() -> None:
    """As `torch.overrides` asks every function of torch."""
    import torch

    from optkit.craft.sources import single_chunks

    with single_chunks.unasked():
        assert torch.chunk.__name__ == torch.Tensor.chunk.__name__ == "chunk"
        x = torch.arange(4)
        assert torch.chunk(x, 1)[0] is x and x.chunk(1)[0] is x
        assert [len(part) for part in torch.chunk(x, 2)] == [2, 2]
