"""nn.LSTM, nn.GRU and nn.RNN are one node per layer, for any number of steps, and compute the same.

The export itself compares the graph with the module at two other sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from optkit.craft.sources import torch_module
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend

AXES = {"batch": AxisRange(1, 3, 5), "steps": AxisRange(1, 6, 9)}


class Recurrent(nn.Module):
    """Outputs and last states of a recurrence over [batch, steps, 4], or [steps, batch, 4]."""

    def __init__(self, kind: str, **settings: Any) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(4, 6, **settings)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs, states = self.cell(x)
        states = states if isinstance(states, tuple) else (states,)
        return {"y": outputs, **{f"state_{i}": state for i, state in enumerate(states)}}


class WithStates(Recurrent):
    """The states are inputs, [layers, batch, 6]."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        outputs, state = self.cell(x, h)
        return {"y": outputs, "state": state}


class Packed(Recurrent):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded: torch.Tensor = rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)[0]
        return padded


def spec(name: str, *shape: int | str, dtype: str = "float32") -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape), (1, 1) if dtype == "int64" else None)


def export(module: nn.Module, out: Path, *specs: InputSpec) -> list[str]:
    """The operators of the graph."""
    torch_module.export(
        module.eval(), specs, AXES, out,
        session=backend("onnxruntime").session, progress=lambda what, share: None,
    )  # fmt: skip
    return [node.op_type for node in graph.load(out).graph.all_nodes()]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("LSTM", {"bias": False}),
        ("GRU", {"num_layers": 2, "batch_first": True, "dropout": 0.5}),
        ("GRU", {"bidirectional": True}),
        ("RNN", {"bidirectional": True, "batch_first": True}),
        ("RNN", {"nonlinearity": "relu"}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_layer_is_one_node_for_any_number_of_steps(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    module, out = Recurrent(kind, **settings), tmp_path / "m.onnx"
    shape = ("batch", "steps", 4) if settings.get("batch_first") else ("steps", "batch", 4)
    operators = export(module, out, spec("x", *shape))
    assert operators.count(kind) == settings.get("num_layers", 1)
    assert not {"Split", "MatMul", "Gemm", "Loop", "Scan"} & set(operators)  # the weights too
    x = torch.randn([{"batch": 2, "steps": 8}.get(str(size), 4) for size in shape])
    with backend("onnxruntime").session(out) as session:
        got = session.run({"x": x.numpy()})
    for name, wanted in module(x).items():
        np.testing.assert_allclose(got[name], wanted.detach().numpy(), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_states_may_be_inputs(tmp_path: Path) -> None:
    module = WithStates("GRU", num_layers=2, batch_first=True)
    operators = export(
        module, tmp_path / "m.onnx", spec("x", "batch", "steps", 4), spec("h", 2, "batch", 6)
    )
    assert operators.count("GRU") == 2


@pytest.mark.filterwarnings("ignore")
def test_outputs_at_the_real_steps_do_not_depend_on_padding(tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    export(Recurrent("LSTM", batch_first=True), out, spec("x", "batch", "steps", 4))
    x = np.random.default_rng(0).normal(size=(2, 7, 4)).astype(np.float32)
    padded = np.concatenate([x, np.zeros((2, 2, 4), np.float32)], 1)
    with backend("onnxruntime").session(out) as session:
        alone, within = session.run({"x": x})["y"], session.run({"x": padded})["y"][:, :7]
    np.testing.assert_allclose(within, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "specs", "hint"),
    [
        (Recurrent("LSTM", batch_first=True, proj_size=2), (), "proj_size"),
        (
            Packed("LSTM", batch_first=True),
            (spec("lengths", "batch", dtype="int64"),),
            "without pack_padded_sequence",
        ),
        (
            Packed("GRU", batch_first=True),
            (spec("lengths", "batch", dtype="int64"),),
            "without pack_padded_sequence",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_operator_is_refused_with_a_remedy(
    module: nn.Module, specs: tuple[InputSpec, ...], hint: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportFailed) as caught:
        export(module, tmp_path / "m.onnx", spec("x", "batch", "steps", 4), *specs)
    assert hint in str(caught.value.hint)
