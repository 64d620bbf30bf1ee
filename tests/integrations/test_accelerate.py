"""A loop with Accelerate leaves an artifact of the plain model, also of mixed precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optkit
from optkit.verbs.integrations import deploy
from tests.integrations.test_deployment import QUICK, Net, digest

pytestmark = pytest.mark.slow


@pytest.fixture
def accelerate() -> Any:
    library = pytest.importorskip("accelerate")
    yield library
    library.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("unwrapped", [True, False])
def test_a_loop_with_accelerate_leaves_an_artifact(
    precision: str, unwrapped: bool, accelerate: Any, cache: Path, tmp_path: Path
) -> None:
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    net = Net()
    data = TensorDataset(torch.randn(32, 16), torch.randint(0, 4, (32,)))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), 0.1), DataLoader(data, batch_size=8)
    )
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    given = accelerator.unwrap_model(model) if unwrapped else model
    before, attributes = digest(net), dict(vars(given))
    (artifact,) = deploy(
        given, loader, targets=["cpu"], recipe=QUICK, out=tmp_path,
        workspace=optkit.Workspace(cache),
    )  # fmt: skip
    assert digest(net) == before and dict(vars(given)) == attributes
    (info,) = artifact.manifest.inputs
    assert (info.name, info.dtype) == ("x", "float32")
    with torch.no_grad():
        wanted = Net.forward(net.eval(), x).numpy()
    with artifact:
        (y,) = artifact.run({"x": x}).values()
    assert np.abs(y - wanted).max() < 0.1 * np.abs(wanted).max()
