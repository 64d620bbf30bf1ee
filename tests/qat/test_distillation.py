"""The loss against the float module, the short training with it, and what wraps a module."""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from optkit.facts import errors
from optkit.ground.workspace import Workspace
from optkit.road.jobs.batches import Batch
from optkit.satellites import qat
from optkit.satellites.qat import training
from optkit.satellites.qat.distillation import divergence
from tests.qat.conftest import RECIPE, Net, written


@pytest.fixture(scope="module")
def start(net: Net, images: Tensor, workspace: Workspace) -> nn.Module:
    """Prepared, in FP8, with ranges that leave something to learn."""
    return qat.prepare(
        net, images[:4], target="l4", precision="fp8",
        recipe={**RECIPE, "calibration": {"source": "memory", "method": "minmax"}},
        calibration=list(images.split(8)), workspace=workspace,
    ).eval()  # fmt: skip


@pytest.fixture
def student(start: nn.Module) -> nn.Module:
    return copy.deepcopy(start)


def error(y: Tensor, expected: Tensor) -> float:
    return float((y - expected).square().sum() / expected.square().sum())


def test_the_loss_is_the_error_to_the_float_module(
    net: Net, student: nn.Module, images: Tensor
) -> None:
    with torch.no_grad():
        expected, y = net(images), student(images)
    loss = qat.Distillation(student)(y, images)
    torch.testing.assert_close(loss.item(), error(y, expected))
    assert 0 < loss < 0.1 and not student.training
    assert qat.Distillation(student)(expected, images).item() == 0


def test_the_divergence_of_classes(net: Net, student: nn.Module, images: Tensor) -> None:
    """Against F.kl_div with batchmean, whose gradients a temperature scales down by its square."""
    with torch.no_grad():
        expected = net(images)
    y = student(images)
    loss = qat.Distillation(student, loss="kl", temperature=2.0)(y, images)
    wanted = F.kl_div(F.log_softmax(y / 2, 1), F.softmax(expected / 2, 1), reduction="batchmean")
    torch.testing.assert_close(loss, wanted * 4)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(x.grad is not None for x in student.parameters())
    assert all(x.grad is None for x in net.parameters())


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 5), 1), ((2, 7, 5), 2), ((2, 5, 3, 4), 1)], ids=str
)
def test_the_axis_of_the_classes(shape: tuple[int, ...], axis: int) -> None:
    """A number that is added to all classes of a position changes nothing."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    moved = x + torch.randn([1 if i == axis else n for i, n in enumerate(shape)])
    torch.testing.assert_close(divergence(moved, x, 1.0).item(), 0.0, atol=1e-6, rtol=0)
    assert divergence(x.flip(axis), x, 1.0) > 0.1


def test_a_loss_of_the_caller(net: Net, student: nn.Module, images: Tensor) -> None:
    """It gets both outputs, whatever they are, such as those of a detector's head."""

    def loss(ours: Any, theirs: Any) -> Tensor:
        return F.l1_loss(ours["boxes"], theirs)

    y = student(images)
    with torch.no_grad():
        wanted = (y - net(images)).abs().mean()
    torch.testing.assert_close(qat.Distillation(student, loss=loss)({"boxes": y}, images), wanted)


def test_features(net: Net, student: nn.Module, images: Tensor) -> None:
    features = ["blocks.0", "norm1d"]  # norm1d is folded: its output is that of `hidden`
    distillation = qat.Distillation(student, features=features)
    y = student(images)
    kept: dict[str, Tensor] = {}
    for model, place in ((net, "float"), (student, "codes")):
        plain = copy.deepcopy(model)
        for name in features:
            plain.get_submodule(name).register_forward_hook(
                lambda _, __, output, key=f"{place} {name}": kept.update({key: output})
            )
        with torch.no_grad():
            plain(images)
    wanted = sum(error(kept[f"codes {name}"], kept[f"float {name}"]) for name in features) / 2
    loss = distillation(y, images) - qat.Distillation(student)(y, images)
    torch.testing.assert_close(loss.item(), wanted, rtol=1e-3, atol=1e-6)
    with pytest.raises(errors.UsageError, match="did not run since the last loss"):
        distillation(y, images)


def test_wrong_losses_are_refused(net: Net, student: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.UsageError, match="not prepared"):
        qat.Distillation(net)
    with pytest.raises(errors.UsageError, match="'l1' is no loss"):
        qat.Distillation(student, loss="l1")  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="no number above 0"):
        qat.Distillation(student, loss="kl", temperature=0.0)
    with pytest.raises(errors.UsageError, match="no module 'neck'"):
        qat.Distillation(student, features=["neck"])
    with pytest.raises(errors.UsageError, match="has the BatchNorm after it"):
        qat.Distillation(student, features=["stem"])
    with pytest.raises(errors.UsageError, match=r"output \[4, 5\], the teacher output \[8, 5\]"):
        qat.Distillation(student)(student(images[:4]), images[:8])


def test_dropout_is_refused(student: nn.Module, images: Tensor) -> None:
    student.add_module("drop", nn.Dropout(0.1))
    distillation = qat.Distillation(student)
    assert distillation(student(images), images) > 0
    student.train()
    with pytest.raises(errors.UsageError, match="'drop' drops numbers"):
        distillation(student(images), images)


def test_the_teacher_shares_its_weights_and_stays(
    net: Net, student: nn.Module, images: Tensor
) -> None:
    """It is no part of the module: not in its state, its parameters or its copies."""
    assert student.state_dict().keys() == copy.deepcopy(student).state_dict().keys()
    teacher: Any = student.qat_teacher
    assert all(
        x.data_ptr() == y.data_ptr()
        for x, y in zip(net.parameters(), teacher.module.parameters(), strict=True)
    )
    assert copy.deepcopy(student).qat_teacher is teacher
    assert AveragedModel(student).module.qat_teacher is teacher
    distillation = qat.Distillation(student, features=["pool"])
    loss = distillation(student.train()(images), images)
    loss.backward()  # type: ignore[no-untyped-call]
    assert not teacher.module.training and not net.training
    copied = copy.deepcopy(student)  # with a graph behind the features
    assert "qat_teacher" not in vars(qat.finalize(copied))
    assert not qat.finalize(copied).pool._forward_hooks  # type: ignore[union-attr]


def test_a_compiled_module_has_the_same_gradients(student: nn.Module, images: Tensor) -> None:
    gradients = []
    for way in (student, torch.compile(student, backend="aot_eager", fullgraph=True)):
        distillation = qat.Distillation(way, features=["blocks"])
        student.zero_grad()
        distillation(way(images), images).backward()  # type: ignore[no-untyped-call]
        gradients.append([x.grad for x in student.parameters()])
    for plain, compiled in zip(*gradients, strict=True):
        assert plain is not None and compiled is not None
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4 * float(
            plain.abs().max() + 1e-3))  # fmt: skip


class Progress:
    """A listener."""

    def __init__(self) -> None:
        self.fractions: list[float] = []
        self.texts: list[str] = []

    def start(self, step: str, label: str) -> None:
        self.texts.append(f"start {label}")

    def progress(self, what: str, fraction: float) -> None:
        self.fractions.append(fraction)

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self.texts.append(f"done {label}")

    def failed(self, step: str, label: str) -> None:
        self.texts.append(f"failed {label}")

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_short_training_comes_nearer(
    net: Net, student: nn.Module, images: Tensor, workspace: Workspace
) -> None:
    """On batches that it does not see, with items that forward does not take; the graph has it."""
    batches = [(x, torch.zeros(8)) for x in images.split(8)]
    progress = Progress()
    found = qat.distill(
        student, batches, steps=40, workspace=Workspace(workspace.cache, listener=progress)
    )
    assert found.steps == 40 and found.stopped == "budget" and 0 < found.best_step <= 40
    with torch.no_grad():
        held = error(student.eval()(images[:8]), net(images[:8]))
    torch.testing.assert_close(held, found.loss_after)
    assert found.loss_after < 0.9 * found.loss_before
    assert progress.texts == ["start distil Net", "done distil Net"]
    assert progress.fractions == [step / 40 for step in range(1, 41)]
    graph = written(qat.finalize(student), images, workspace, "l4", "fp8")
    with torch.no_grad():
        assert error(torch.from_numpy(graph.run(images[:8])), net(images[:8])) < 0.95 * (
            found.loss_before
        )


def test_rates_follow_the_size_of_parameters(student: nn.Module) -> None:
    student.head.bias.data.zero_()  # type: ignore[union-attr, operator]
    student.stem.weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    groups = qat.parameter_groups(torch.compile(student), 0.5)
    rates = {id(x): group["lr"] for group in groups for x in group["params"]}
    parameters = dict(student.named_parameters())
    assert len(groups) == len(parameters) - 1 and id(parameters["stem.weight"]) not in rates
    weight = parameters["head.weight"]
    assert rates[id(weight)] == pytest.approx(0.5 * weight.square().mean().sqrt().item())
    scale = parameters["head.input_quantizer.scale"]
    assert rates[id(scale)] == pytest.approx(1.5 * scale.item())
    assert rates[id(parameters["head.bias"])] > 0


def test_a_training_that_gains_nothing_changes_nothing(
    student: nn.Module, images: Tensor, workspace: Workspace
) -> None:
    before = copy.deepcopy(student.state_dict())
    progress = Progress()
    found = qat.distill(
        student, list(images.split(8)), steps=40, learning_rate=1e4,
        workspace=Workspace(workspace.cache, listener=progress),
    )  # fmt: skip
    assert found.stopped == "no gain" and found.best_step == 0 and found.steps < 40
    assert found.loss_after == found.loss_before
    assert progress.texts[-1] == "the distillation gained nothing; the module is as before"
    state = student.state_dict()
    assert all(torch.equal(before[name], state[name]) for name in before)


def test_a_rate_that_loses_is_lowered(
    student: nn.Module, images: Tensor, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After five checks that lose, the training returns to the best state and goes on with a third
    of the rates."""
    losses = iter([5.0, *[6.0] * 5, 3.0, *[7.0] * 4])
    rates: list[float] = []
    starts: list[Tensor] = []
    check, train = training._Training._state, training._Training._train

    def checked(self: training._Training, step: int, held: list[Batch]) -> training._State:
        return replace(check(self, step, held), loss=next(losses))

    def trained(self: training._Training, batch: Batch, spent: float, slowed: float) -> None:
        starts.append(self.parameters[0].detach().clone())
        rates.append(slowed)
        train(self, batch, spent, slowed)

    monkeypatch.setattr(training._Training, "_state", checked)
    monkeypatch.setattr(training._Training, "_train", trained)
    found = qat.distill(student, list(images.split(8)), steps=10, workspace=workspace)
    assert rates == pytest.approx([1] * 5 + [1 / 3] * 5)
    assert torch.equal(starts[5], starts[0]) and not torch.equal(starts[4], starts[0])
    assert found.best_step == 6 and found.loss_after == 3.0 and found.stopped == "budget"
    (kept,) = qat.parameter_groups(student)[0]["params"]
    assert torch.equal(kept, starts[6])


def test_seconds_end_a_training(
    student: nn.Module, images: Tensor, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second whenever it is read, and a loss that always falls."""
    clock, falling = itertools.count(), itertools.count(1)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def loss(y: Tensor, expected: Tensor) -> Tensor:
        return 0 * (y - expected).sum() + 1 / next(falling)

    found = qat.distill(
        student, list(images.split(8)), steps=10**9, seconds=30,
        loss=qat.Distillation(student, loss=loss), workspace=workspace,
    )  # fmt: skip
    assert found.stopped == "budget"
    assert 10 <= found.steps <= 31 and 30 <= found.seconds <= 32


def test_batches_that_are_held_out(
    net: Net, student: nn.Module, images: Tensor, workspace: Workspace
) -> None:
    """The first eighth of the batches is never trained, unless others are held out."""
    seen: list[Tensor] = []

    def loss(y: Tensor, expected: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            seen.append(expected)
        return (y - expected).square().mean()

    rows, distillation = list(images.split(2)), qat.Distillation(student, loss=loss)
    wanted: dict[str, Any] = {"loss": distillation, "workspace": workspace}
    qat.distill(student, rows, steps=len(rows), **wanted)
    with torch.no_grad():
        outputs = [net(x) for x in rows]
    trained = [any(torch.equal(y, x) for x in seen) for y in outputs]
    assert trained == [False] * 4 + [True] * 28
    seen.clear()
    qat.distill(student, rows, steps=len(rows), held_out=[images[:8]], **wanted)
    assert all(any(torch.equal(y, x) for x in seen) for y in outputs[:4])


def test_wrong_trainings_are_refused(
    net: Net, student: nn.Module, images: Tensor, workspace: Workspace
) -> None:
    batches = list(images.split(8))
    with pytest.raises(errors.UsageError, match="not prepared"):
        qat.distill(net, batches)
    with pytest.raises(errors.UsageError, match="0 is no whole number"):
        qat.distill(student, batches, steps=0)
    with pytest.raises(errors.UsageError, match="-1 is no number above 0"):
        qat.distill(student, batches, seconds=-1)
    with pytest.raises(errors.UsageError, match="nan is no number from 0 on"):
        qat.distill(student, batches, learning_rate=math.nan)
    with pytest.raises(errors.UsageError, match="read only once"):
        qat.distill(student, iter(batches))
    with pytest.raises(errors.UsageError, match="one batch to train and one to hold out"):
        qat.distill(student, batches[:1])
    progress = Progress()
    with pytest.raises(errors.InputRefused, match="nan before the training"):
        qat.distill(student, [x * math.nan for x in batches],
                    workspace=Workspace(workspace.cache, listener=progress))  # fmt: skip
    assert progress.texts[-1] == "failed distil Net"


_RANK = """
import sys, torch
from pathlib import Path
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from optkit import qat
from optkit.ground.workspace import Workspace
from tests.qat.conftest import RECIPE, Net

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
images = torch.load(folder / "images.pt")
net = Net()
net.load_state_dict(torch.load(folder / "net.pt"))
store = distributed.FileStore(str(folder / "ranks"), 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
workspace = Workspace(folder / str(rank))
found = qat.prepare(net.eval(), images[:4], target="l4", precision="fp8", recipe=RECIPE,
                    calibration=list(images.split(8)), workspace=workspace)
gained = qat.distill(DistributedDataParallel(found), list(images[rank::2].split(4)), steps=20,
                     seconds=600, workspace=workspace)
state = {**found.state_dict(), "before": gained.loss_before, "after": gained.loss_after}
torch.save(state, folder / f"{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_keep_the_same_state(net: Net, images: Tensor, tmp_path: Path) -> None:
    """Each has its own batches; they agree on the loss, so on the best state too."""
    torch.save(images, tmp_path / "images.pt")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    (tmp_path / "rank.py").write_text(_RANK)
    ranks = [
        subprocess.Popen([sys.executable, tmp_path / "rank.py", tmp_path, str(rank)])
        for rank in range(2)
    ]
    assert [rank.wait(timeout=600) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first["after"] == second["after"] < first["before"] == second["before"]
    scales = [name for name in first if name.endswith("quantizer.scale")]
    assert scales and all(torch.equal(first[name], second[name]) for name in scales)
