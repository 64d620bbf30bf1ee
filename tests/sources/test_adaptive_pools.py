"""Adaptive pools over axes of free size are torch's at every size, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from optkit.craft.sources import adaptive_pools, program, torch_module
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend

AXES = {"batch": AxisRange(1, 2, 4), "h": AxisRange(1, 17, 60), "w": AxisRange(1, 19, 60)}
IMAGE = ("batch", 2, "h", "w")


class Several(nn.Module):
    """Functions of one input, as outputs by name."""

    def __init__(self, **functions: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(x) for name, function in self.functions.items()}


POOLS = Several(
    six=nn.AdaptiveAvgPool2d(6),
    seven=nn.AdaptiveAvgPool2d(7),
    oblong=nn.AdaptiveAvgPool2d((3, 5)),
    rows=nn.AdaptiveAvgPool2d((4, 1)),
    height=nn.AdaptiveAvgPool2d((None, 1)),
    width=nn.AdaptiveAvgPool2d((1, None)),
    columns=nn.AdaptiveAvgPool2d((None, 3)),
    one=nn.AdaptiveAvgPool2d(1),
    line=lambda x: functional.adaptive_avg_pool1d(x.flatten(0, 1), 5),
    volume=nn.AdaptiveAvgPool3d((2, 3, 4)),
    area=lambda x: functional.interpolate(x, size=(6, 5), mode="area"),
    most=nn.AdaptiveMaxPool2d(6),
    most_oblong=nn.AdaptiveMaxPool2d((3, 5)),
    most_height=nn.AdaptiveMaxPool2d((None, 1)),
    most_columns=nn.AdaptiveMaxPool2d((3, None)),
    most_line=lambda x: functional.adaptive_max_pool1d(x.flatten(0, 1), 5),
    most_volume=nn.AdaptiveMaxPool3d((1, 3, 4)),
)


def export(module: nn.Module, out: Path, *shape: int | str, **axes: AxisRange) -> list[str]:
    """The operators of the graph, which the export has compared with the module."""
    spec = InputSpec(TensorInfo("x", "float32", shape))
    torch_module.export(
        module.eval(), [spec], axes or AXES, out,
        session=backend("onnxruntime").session, progress=lambda what, share: None,
    )  # fmt: skip
    return [node.op_type for node in graph.load(out).graph.all_nodes()]


def equal_at(module: nn.Module, out: Path, shapes: list[tuple[int, ...]]) -> None:
    with backend("onnxruntime").session(out) as session:
        for shape in shapes:
            x = torch.randn(shape)
            found = session.run({"x": x.numpy()})
            for name, values in module(x).items():
                np.testing.assert_allclose(
                    found[name], values, rtol=1e-5, atol=1e-5, err_msg=f"{name} at {shape}"
                )


@pytest.mark.slow
def test_every_kind_of_pool_is_equal_at_a_hundred_sizes(tmp_path: Path) -> None:
    export(POOLS, tmp_path / "m.onnx", *IMAGE)
    rng = np.random.default_rng(0)
    sizes = {tuple(int(n) for n in rng.integers(1, 61, 2)) for _ in range(110)}
    smallest = [(1, 2, 1, 1), (2, 2, 1, 60), (1, 2, 60, 1), (4, 2, 6, 7), (1, 2, 5, 3)]
    equal_at(POOLS, tmp_path / "m.onnx", smallest + [(1, 2, *size) for size in sizes])


@pytest.mark.slow
def test_a_free_number_of_windows_is_equal(tmp_path: Path) -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x[..., ::2, 1:], size=x.shape[2:], mode="area")

    both = Several(half=lambda x: functional.interpolate(x, scale_factor=0.5, mode="area"),
                   like=like)  # fmt: skip
    free = {"h": AxisRange(4, 18, 60), "w": AxisRange(4, 21, 60)}
    export(both, tmp_path / "m.onnx", 1, 2, "h", "w", **free)
    equal_at(both, tmp_path / "m.onnx", [(1, 2, h, w) for h in (4, 9, 30) for w in (5, 33, 60)])


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(1, 200),
    bins=st.integers(1, 40),
    axis=st.integers(1, 3),
    data=st.integers(0, 9),
)
def test_windows_are_those_of_torch(size: int, bins: int, axis: int, data: int) -> None:
    shape = [2, 3, 4, 5]
    shape[axis] = size
    x = torch.randn(shape, generator=torch.Generator().manual_seed(data))
    counts = [*shape[1:]]
    counts[axis - 1] = bins
    mean = functional.adaptive_avg_pool3d(x.unsqueeze(0), counts)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(adaptive_pools.means(x, counts), mean, rtol=1e-5, atol=1e-6)
    most = functional.adaptive_max_pool3d(x, counts)
    torch.testing.assert_close(adaptive_pools.maxima(x, counts), most, rtol=0, atol=0)


def test_an_infinity_stays_in_its_windows() -> None:
    x = torch.zeros(1, 1, 10)
    x[..., 4] = torch.inf
    assert adaptive_pools.means(x, [4]).isinf().tolist() == [[[False, True, False, False]]]


def test_pools_that_ONNX_has_stay_one_node(tmp_path: Path) -> None:
    whole = export(nn.AdaptiveAvgPool2d(1), tmp_path / "1.onnx", *IMAGE)
    assert whole == ["ReduceMean"]
    both = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.AdaptiveMaxPool2d(3))
    fixed = export(both, tmp_path / "2.onnx", "batch", 2, 12, 18, batch=AXES["batch"])
    assert fixed == ["AveragePool", "MaxPool"]


def test_a_pool_of_a_free_axis_is_equal(tmp_path: Path) -> None:
    both = Several(mean=nn.AdaptiveAvgPool2d((4, 1)), most=nn.AdaptiveMaxPool2d((None, 5)))
    export(both, tmp_path / "m.onnx", *IMAGE)
    equal_at(both, tmp_path / "m.onnx", [(1, 2, 1, 1), (2, 2, 13, 26), (1, 2, 20, 11)])


def test_a_maximum_of_a_fixed_axis_may_have_windows_of_several_lengths(tmp_path: Path) -> None:
    found = export(nn.AdaptiveMaxPool2d(5), tmp_path / "m.onnx", "batch", 2, 12, 18,
                   batch=AXES["batch"])  # fmt: skip
    assert set(found) <= {"Shape", "Squeeze", "Gather", "Concat", "Reshape", "ReduceMax"}


def test_a_mean_of_fixed_axes_may_have_windows_of_several_lengths(tmp_path: Path) -> None:
    """Over three axes torch has no decomposition."""
    export(nn.AdaptiveAvgPool3d((2, 3, 4)), tmp_path / "m.onnx", 1, 2, 3, 4, 5, batch=AXES["batch"])


def test_indices_of_a_maximum_are_refused_with_the_line(tmp_path: Path) -> None:
    class Unpooled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.adaptive_max_pool2d(x, 3, return_indices=True)[1]

    with pytest.raises(ExportFailed, match="the indices of an adaptive maximum") as caught:
        export(Unpooled(), tmp_path / "m.onnx", *IMAGE)
    assert "return_indices=True" in str(caught.value.where)


@pytest.mark.slow
def test_a_saved_program_is_compared_with_torch_s_own_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dim = torch.export.Dim
    saved = torch.export.export(
        nn.AdaptiveAvgPool2d(6), (torch.randn(1, 2, 17, 19),),
        dynamic_shapes=[{2: dim("h", min=8, max=60), 3: dim("w", min=8, max=60)}],
    )  # fmt: skip
    torch.export.save(saved, tmp_path / "m.pt2")

    def exported() -> None:
        program.export(
            tmp_path / "m.pt2", [InputSpec(TensorInfo("x", "float32", (1, 2, "h", "w")))],
            {"h": AxisRange(8, 17, 60), "w": AxisRange(8, 19, 60)}, tmp_path / "m.onnx",
            session=backend("onnxruntime").session, progress=lambda what, share: None,
        )  # fmt: skip

    exported()
    monkeypatch.setattr(adaptive_pools, "means", lambda x, bins: adaptive_pools.maxima(x, bins))
    with pytest.raises(ExportFailed, match="differs from torch"):
        exported()
