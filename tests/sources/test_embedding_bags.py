"""EmbeddingBag is exported as lookups and sums, without loops, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from optkit.craft.sources import embedding_bags, torch_module
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend

ROWS, WIDTH = 30, 4


class Bags(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, **settings)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        returned: torch.Tensor = self.bag(*inputs)
        return returned


def exported(module: nn.Module, specs: list[InputSpec], axes: list[str], out: Path) -> list[str]:
    """The operators of the graph; the export compares it with the module."""
    torch_module.export(
        module.eval(), specs, dict.fromkeys(axes, AxisRange(1, 4, 9)), out,
        session=backend("onnxruntime").session, progress=lambda what, share: None,
    )  # fmt: skip
    return [node.op_type for node in graph.load(out).graph.all_nodes()]


def spec(name: str, *shape: int | str, dtype: str = "int64", most: int = ROWS - 1) -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape), (0, most))


@pytest.mark.parametrize(
    "settings", [{"mode": mode} for mode in ("sum", "mean", "max")] + [{"padding_idx": 3}]
)
def test_a_bag_in_each_row_is_a_lookup_and_a_reduction(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    found = exported(Bags(**settings), [spec("ids", "batch", 5)], ["batch"], tmp_path / "m.onnx")
    assert "Gather" in found and not {"Loop", "Scan", "SequenceEmpty"} & set(found)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_that_offsets_divide_are_a_lookup_and_a_product(mode: str, tmp_path: Path) -> None:
    module, out = Bags(mode=mode), tmp_path / "m.onnx"
    specs = [spec("ids", "entries"), spec("offsets", "bags", most=0)]
    found = exported(module, specs, ["entries", "bags"], out)
    assert "MatMul" in found and not {"Loop", "Scan", "SequenceEmpty"} & set(found)
    ids, offsets = np.arange(9) * 3, np.array([0, 2, 2, 7])
    with backend("onnxruntime").session(out) as session:
        got = session.run({"ids": ids, "offsets": offsets})["output"]
    wanted = module(torch.from_numpy(ids), torch.from_numpy(offsets)).detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_both_forms_equal_torch(data: st.DataObject) -> None:
    """Rows with weights and padding, and offsets with empty bags, as torch computes them."""
    torch.manual_seed(data.draw(st.integers(0, 99), label="seed"))
    table = torch.randn(ROWS, WIDTH)
    mode = data.draw(st.sampled_from(["sum", "mean", "max"]), label="mode")
    padding = data.draw(st.sampled_from([None, 2, -1]), label="padding")
    weighted = mode == "sum" and data.draw(st.booleans(), label="weighted")
    ids = torch.randint(0, ROWS, (3, data.draw(st.integers(1, 5), label="entries")))
    ids[0] = 2  # a bag of padding only
    shares = torch.rand(ids.shape) if weighted else None
    call = {"mode": mode, "padding_idx": padding, "per_sample_weights": shares}
    wanted = functional.embedding_bag(ids, table, **call)
    with embedding_bags.gathered():
        torch.testing.assert_close(functional.embedding_bag(ids, table, **call), wanted)
    if mode == "max":
        return
    last = data.draw(st.booleans(), label="last")
    flat = ids.reshape(-1)
    begins = sorted(data.draw(st.lists(st.integers(0, len(flat)), min_size=1), label="offsets"))
    offsets = torch.tensor([0, *begins[1:], *([len(flat)] if last else [])])
    shares = None if shares is None else shares.reshape(-1)
    arguments = (False, {"sum": 0, "mean": 1}[mode], False, shares, last,
                 padding)  # fmt: skip
    torch.testing.assert_close(
        embedding_bags._product(table, flat, offsets, *arguments)[0],
        torch.embedding_bag(table, flat, offsets, *arguments)[0],
    )
