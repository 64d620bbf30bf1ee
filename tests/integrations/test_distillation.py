"""Distillation in the training loops of others: each is a float training with three other lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import optkit
from optkit.satellites import qat

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """x [B, 16] → logits [B, 4], also with the loss of labels"""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.last(self.drop(torch.relu(self.first(x))))
        if labels is None:
            return {"logits": logits}
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def prepared(net: Net, x: Tensor, cache: Path) -> nn.Module:
    """With other weights than those of the teacher, so that there is much to win."""
    student = qat.prepare(
        net, {"x": x[:8]}, target="l4", precision="fp8",
        calibration=[{"x": part} for part in x.split(8)],
        workspace=optkit.Workspace(cache, listener=None),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in (student.first, student.last):
            layer.weight.mul_(1 + 0.2 * torch.randn(layer.weight.shape, generator=draw))  # type: ignore[union-attr, operator, arg-type]
    return student


def error(student: nn.Module, net: Net, x: Tensor) -> float:
    with torch.no_grad():
        y, expected = student.eval()(x)["logits"], net.eval()(x)["logits"]
    return float((y - expected).square().sum() / expected.square().sum())


def test_the_trainer_of_hugging_face(net: Net, x: Tensor, cache: Path, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from optkit.verbs.integrations.transformers import DistillationTrainer

    student = prepared(net, x, cache)
    before = error(student, net, x)
    rows = [{"x": row, "labels": torch.tensor(index % 4)} for index, row in enumerate(x)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=60, per_device_train_batch_size=8,
        gradient_accumulation_steps=2, learning_rate=3e-3, weight_decay=0.0,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = DistillationTrainer(student, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert error(student, net, x) < 0.5 * before
    evaluated = trainer.evaluate()["eval_loss"]
    assert evaluated == pytest.approx(error(student, net, x), rel=0.2)  # the mean of its batches
    assert qat.finalize(student).trained_scales is not None


def test_accumulated_gradients_are_a_mean(net: Net, x: Tensor, cache: Path, tmp_path: Path) -> None:
    """Of two equal batches they are those of one."""
    from transformers import TrainerCallback, TrainingArguments

    from optkit.verbs.integrations.transformers import DistillationTrainer

    student = prepared(net, x, cache)
    found: list[Tensor] = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **named: Any) -> None:
            found.append(named["model"].first.weight.grad.clone())

    rows = [{"x": row, "labels": torch.tensor(0)} for row in x[:8]] * 2
    for steps in (1, 2):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8,
            gradient_accumulation_steps=steps, learning_rate=0.0, max_grad_norm=0.0,
            report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        DistillationTrainer(student, arguments, train_dataset=rows, callbacks=[Watch()]).train()
    torch.testing.assert_close(found[1], found[0])
    assert found[0].abs().max() > 0


def test_lightning(net: Net, x: Tensor, cache: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, student: nn.Module) -> None:
            super().__init__()
            self.net = student
            self.distillation = qat.Distillation(student)

        def training_step(self, batch: Any, index: int) -> Tensor:
            (x,) = batch
            return self.distillation(self.net(x), x)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(qat.parameter_groups(self.net, 3e-3))

    student = prepared(net, x, cache)
    before = error(student, net, x)
    trainer = pl.Trainer(
        max_epochs=15, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(student), DataLoader(TensorDataset(x), batch_size=8, shuffle=True))
    assert error(student, net, x) < 0.5 * before


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str, net: Net, x: Tensor, cache: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    try:
        student = prepared(net, x, cache)
        before = error(student, net, x)
        model, optimizer, loader = accelerator.prepare(
            student, torch.optim.Adam(qat.parameter_groups(student, 3e-3)),
            DataLoader(TensorDataset(x), batch_size=8),
        )  # fmt: skip
        distillation = qat.Distillation(model)
        for _ in range(15):
            for (part,) in loader:
                optimizer.zero_grad()
                accelerator.backward(distillation(model(part), part))
                optimizer.step()
        trained = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        assert error(trained, net, x) < 0.5 * before
        assert qat.finalize(model).trained_scales is not None
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
