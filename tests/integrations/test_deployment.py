"""Artifacts at the end of a training: the module stays as it is, and a failure ends nothing."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import optkit
from optkit.facts.errors import OptkitError
from optkit.verbs.integrations import Deployment, deploy
from optkit.verbs.integrations.deployment import example_of, is_first_rank

QUICK = {"name": "net", "bench": {"seconds": 0.05, "warmup_seconds": 0.05, "batches": [1]}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x)))) * scale


def loader(batches: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 16, generator=draw), torch.randint(0, 4, (8,), generator=draw))
        for _ in range(batches)
    ]


def digest(model: nn.Module) -> str:
    state = hashlib.sha256()
    for name, value in model.state_dict().items():
        state.update(name.encode() + value.cpu().numpy().tobytes())
    return state.hexdigest()


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_the_example_is_what_forward_takes() -> None:
    x, y = loader(1)[0]
    (kept,) = example_of(Net(), [(x, y)])
    assert kept is x
    assert example_of(Net(), [{"x": x, "labels": y}]) == {"x": x}
    assert example_of(Net(), iter([x])) is x
    (kept,) = example_of(torch.compile(Net()), [[x, y]])
    assert kept is x


def test_a_loader_without_a_batch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert deploy(Net(), [], targets=["cpu"]) == ()
    assert "no artifact for cpu in int8" in caplog.text and "has no batch" in caplog.text


@pytest.mark.parametrize("target", ["l5", "t4"])
def test_what_cannot_be_built_is_logged_with_its_remedy(
    target: str, caplog: pytest.LogCaptureFixture, cache: Path, tmp_path: Path
) -> None:
    """An unknown target, and a precision that the target does not have."""
    net = Net().train()
    before = digest(net)
    built = deploy(
        net, loader(), targets=[target], precisions=["fp8"], out=tmp_path,
        workspace=optkit.Workspace(cache),
    )  # fmt: skip
    assert built == () and digest(net) == before and net.training
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.name == "optkit"
    assert target in record.getMessage() and "Traceback" not in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("targets", "precisions", "told"),
    [
        (["cpu", "l44"], "int8", "unknown target 'l44'"),
        ("cpu", ["int8", "int9"], "unknown precision 'int9'"),
        ("t4", "fp8", "fp8 needs compute capability 8.9"),
    ],
)
def test_a_callback_refuses_before_the_training(targets: Any, precisions: Any, told: str) -> None:
    from optkit.verbs.integrations.transformers import DeployCallback

    with pytest.raises(OptkitError, match=told):
        DeployCallback(Deployment(targets, precisions))
    DeployCallback(Deployment("cpu", "int8"))


def test_an_error_of_the_callers_code_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Iterator[Any]:
        raise ZeroDivisionError("mine")
        yield

    assert deploy(Net(), broken(), targets=["cpu"]) == ()
    assert "ZeroDivisionError: mine" in caplog.text


def test_only_the_first_rank_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_first_rank()
    monkeypatch.setenv("RANK", "1")
    assert not is_first_rank()
    assert deploy(Net(), loader(), targets=["no such target"]) == ()


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda net: net, torch.compile], ids=["plain", "compiled"])
def test_a_plain_loop_leaves_an_artifact(wrap: Any, cache: Path, tmp_path: Path) -> None:
    net = Net()
    train(net)
    before = digest(net)
    (artifact,) = deploy(
        wrap(net), loader(), targets=["cpu"], recipe=QUICK, out=tmp_path,
        workspace=optkit.Workspace(cache),
    )  # fmt: skip
    assert digest(net) == before and net.training
    assert artifact.manifest.precision == "int8"
    assert [info.name for info in artifact.manifest.inputs] == ["x"]
    x = loader(1)[0][0]
    (y,) = artifact.run({"x": x}).values()
    with torch.no_grad():
        expected = net.eval()(x).numpy()
    assert np.abs(y - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.slow
def test_the_trainer_of_hugging_face_leaves_an_artifact(cache: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from optkit.verbs.integrations.transformers import DeployCallback

    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=16, num_labels=3)  # fmt: skip
    model = BertForSequenceClassification(config)
    draw = torch.Generator().manual_seed(0)
    rows = [
        {
            "input_ids": torch.randint(1, 64, (12,), generator=draw),
            "attention_mask": torch.ones(12, dtype=torch.int64),
            "labels": torch.tensor(row % 3),
        }
        for row in range(16)
    ]
    deployment = Deployment(
        ["cpu"], recipe=QUICK, out=tmp_path / "artifacts", workspace=optkit.Workspace(cache)
    )
    callback = DeployCallback(deployment)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    before = digest(model)
    (artifact,) = callback.artifacts
    assert artifact.path.parent == tmp_path / "artifacts"
    assert {info.name for info in artifact.manifest.inputs} == {"input_ids", "attention_mask"}
    assert digest(model) == before
    feed = {
        name: torch.stack([row[name] for row in rows[:4]])
        for name in ("input_ids", "attention_mask")
    }
    (logits,) = artifact.run(feed).values()
    with torch.no_grad():
        expected = model.eval()(**feed).logits.numpy()
    assert np.abs(logits - expected).max() < 0.1 * np.abs(expected).max() + 0.02


@pytest.mark.slow
def test_lightning_leaves_an_artifact(cache: Path, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")

    from optkit.verbs.integrations.lightning import DeployCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    deployment = Deployment(["cpu"], recipe=QUICK, out=tmp_path, workspace=optkit.Workspace(cache))
    callback = DeployCallback(deployment, network=lambda module: module.net)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    module = Module()
    x, y = (torch.cat(parts) for parts in zip(*loader(), strict=True))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    trainer.fit(module, data)
    (artifact,) = callback.artifacts
    (logits,) = artifact.run({"x": x[:8]}).values()
    with torch.no_grad():
        expected = module.net.eval()(x[:8]).numpy()
    assert np.abs(logits - expected).max() < 0.1 * np.abs(expected).max() + 0.02


PAGE = Path(__file__).parents[2] / "docs/how_to/training.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_page_runs(
    block: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(compile(block, PAGE.name, "exec"), {})
    if "deploy(" in block:
        assert "Sequential-cpu-int8" in capsys.readouterr().out
