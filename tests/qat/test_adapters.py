"""Adapters beside the quantized weights of a build, which stay as they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import Tensor, nn

import optkit
from optkit.facts import errors
from optkit.facts.precisions import NumberFormat
from optkit.ground.workspace import Workspace
from optkit.road import pipeline
from optkit.satellites import qat
from optkit.satellites.qat import frozen
from optkit.satellites.qat.adapters import AdaptedLinear, Adapter
from optkit.satellites.qat.agreement import sqnr
from optkit.satellites.qat.products import Product
from tests.qat.conftest import RECIPE, Written, train, written

KINDS = [("cpu", "int4"), ("cpu", "w4a8"), ("cpu", "int2"), ("cpu", "nf4"), ("l4", "int4")]
QUANTIZED = {"first", "second"}
PLAIN = {**RECIPE, "quantization": {"smooth": "off"}}
"""The recipe of a build whose codes adapters stand beside."""


class Mlp(nn.Module):
    """image [B, 4, 12, 12] → logits [B, 5]. Products of values of rank 3 and 2. `first` reads
    channels of very different size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(144, 96), nn.Linear(96, 64)
        self.head = nn.Linear(64, 5, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(2) * torch.linspace(0.1, 3, 144)
        x = torch.relu(self.first(x)).mean(1)
        logits: Tensor = self.head(torch.relu(self.second(x)))
        return logits


class Normalized(nn.Module):
    """image [B, 4, 12, 12] → logits [B, 5], with BatchNorm after the first product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(576, 64), nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 5)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.norm(self.first(image.flatten(1)))))
        return logits


@pytest.fixture(scope="module")
def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp().eval()


def adapted(
    net: nn.Module, images: Tensor, workspace: Workspace, target: str = "cpu", **options: Any
) -> nn.Module:
    return qat.prepare_adapters(
        net, images[:4], target=target, calibration=list(images.split(8)), workspace=workspace,
        **{"recipe": RECIPE, **options},
    )  # fmt: skip


def adapters(net: nn.Module) -> dict[str, Adapter]:
    return {name: part for name, part in net.named_modules() if isinstance(part, Adapter)}


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def trained(
    request: pytest.FixtureRequest, mlp: Mlp, images: Tensor, workspace: Workspace
) -> tuple[nn.Module, Written, Written]:
    """The trained module, the graph of its build, and that of PTQ."""
    target, precision = request.param
    net = adapted(mlp, images, workspace, target, precision=precision, rank=3)
    train(net, images)
    after = written(qat.finalize(net), images, workspace, target, precision)
    before = written(mlp, images, workspace, target, precision, recipe=PLAIN)
    return net, after, before


def test_codes_and_scales_are_those_of_the_build_without_training(
    trained: tuple[nn.Module, Written, Written],
) -> None:
    _, after, before = trained
    for name in (*sorted(QUANTIZED), "head"):
        for part in ("quantized", "scale"):
            same = [graph.constant(f"{name}.weight_{part}") for graph in (before, after)]
            np.testing.assert_array_equal(*same)
    assert set(before.build.planned.items()) <= set(after.build.planned.items())


def test_adapters_are_trained_and_stay_in_float(
    trained: tuple[nn.Module, Written, Written],
) -> None:
    net, after, _ = trained
    of_few_bits = {f"{name}.adapter" for name in QUANTIZED}
    if after.build.job.target.name == "l4" or after.build.job.precision.name == "nf4":
        of_few_bits |= {"head.adapter"}  # of 8 bits otherwise
    assert set(adapters(net)) == of_few_bits
    assert {name.rsplit(".", 3)[-3] for name, p in net.named_parameters() if p.requires_grad} == {
        "adapter"
    }
    assignment = after.build.assignment
    assert assignment is not None
    floats = {node: why for node, why in assignment.reasons.items() if "adapter" in node}
    assert len(floats) == 2 * len(of_few_bits)
    assert all("adapter, which was trained in floats" in why for why in floats.values())


@pytest.mark.parametrize("batch", [1, 8])
def test_the_graph_computes_what_was_trained(
    trained: tuple[nn.Module, Written, Written], images: Tensor, batch: int
) -> None:
    net, after, before = trained
    with torch.no_grad():
        computed = net(images[:batch]).numpy()
    # a sum in another order may give an input of a CPU's product another code
    same = sqnr(after.run(images[:batch]), computed)
    assert same > 50
    assert sqnr(before.run(images[:batch]), computed) < same - 5, "the adapters do nothing"


def test_batch_norm_is_in_the_codes(images: Tensor, workspace: Workspace) -> None:
    torch.manual_seed(0)
    float_net = Normalized()
    for _ in range(4):
        float_net(images * torch.rand(1) + torch.rand(1))
    net = adapted(float_net.eval(), images, workspace)
    with torch.no_grad():
        expected, computed = float_net(images).numpy(), net(images).numpy()
    assert sqnr(expected, computed) > 20
    after = written(qat.finalize(net), images, workspace, "cpu", "int4")
    assert sqnr(after.run(images), computed) > 50
    assert "first.adapter.up/Gemm" in after.build.assignment.reasons  # type: ignore[union-attr]


def test_only_adapters_move(mlp: Mlp, images: Tensor, workspace: Workspace) -> None:
    net = adapted(mlp, images, workspace)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    train(net, images)
    moved = {name for name, t in net.state_dict().items() if not torch.equal(t, before[name])}
    assert moved == {f"{name}.adapter.{part}.weight" for name in QUANTIZED
                     for part in ("down", "up")}  # fmt: skip


def test_they_start_nearer_to_the_float_model_than_the_codes(
    mlp: Mlp, images: Tensor, workspace: Workspace
) -> None:
    with torch.no_grad():
        expected = mlp(images).numpy()
    codes = written(mlp, images, workspace, "cpu", "int4", recipe=PLAIN).run(images)
    found = [sqnr(expected, codes)]
    for rank in (2, 16):
        with torch.no_grad():
            found.append(sqnr(expected, adapted(mlp, images, workspace, rank=rank)(images).numpy()))
    assert found[0] + 0.3 < found[1] < found[2] - 3


def test_distillation_gains_and_the_build_keeps_the_gain(
    mlp: Mlp, images: Tensor, workspace: Workspace
) -> None:
    net = adapted(mlp, images, workspace)
    distilled = qat.distill(net, list(images.split(8)), steps=60, workspace=workspace)
    assert distilled.loss_after < 0.9 * distilled.loss_before
    with torch.no_grad():
        expected = mlp(images).numpy()
    codes = written(mlp, images, workspace, "cpu", "int4", recipe=PLAIN).run(images)
    kept = written(qat.finalize(net), images, workspace, "cpu", "int4").run(images)
    assert sqnr(expected, kept) > sqnr(expected, codes) + 0.5


def test_a_start_is_the_best_matrix_of_its_rank_for_the_inputs() -> None:
    """Against the error of the codes alone and of the plain SVD, on inputs whose channels differ in
    size."""
    generator = np.random.default_rng(0)
    error = generator.normal(size=(24, 40)).astype(np.float32)
    x = generator.normal(size=(500, 40)) * np.geomspace(0.01, 10, 40)

    def left(moments: np.ndarray | None) -> float:
        down, up = frozen.start(error, moments, 4)
        assert (down.shape, up.shape) == ((4, 40), (24, 4))
        return float(np.square((error - up @ down) @ x.T).sum())

    weighted, plain = left(x.T @ x / len(x)), left(None)
    s = np.linalg.svd(error.astype(np.float64) @ x.T, compute_uv=False)
    assert weighted == pytest.approx(float(np.square(s[4:]).sum()), rel=0.05)
    assert weighted < 0.5 * plain


@pytest.mark.parametrize(
    ("shape", "rank"), [((96, 144), 2), ((128, 128), 2), ((4096, 4096), 64), ((5, 64), 1)]
)
def test_a_rank_by_itself_adds_a_quarter(shape: tuple[int, int], rank: int) -> None:
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=32)
    assert frozen.fitting_rank(shape, fmt) == rank


def test_merged_adapters_are_in_float_weights(
    mlp: Mlp, images: Tensor, workspace: Workspace
) -> None:
    net = adapted(mlp, images, workspace)
    train(net, images)
    kept, merged = qat.finalize(net), qat.finalize(net, adapters="merge")
    assert not hasattr(merged, "trained_scales")
    assert not [part for part in merged.modules() if isinstance(part, AdaptedLinear | Product)]
    with torch.no_grad():
        torch.testing.assert_close(merged(images), kept(images), rtol=1e-4, atol=1e-5)
    assert adapters(net), "the trained module changed"


def test_an_exported_file_builds_to_the_same_codes(
    mlp: Mlp, images: Tensor, workspace: Workspace, tmp_path: Path
) -> None:
    net = adapted(mlp, images, workspace)
    file = qat.export(net, images[:4], out=tmp_path / "out", recipe=RECIPE, workspace=workspace)
    both = [written(model, images, workspace, "cpu", "int4") for model in (file, qat.finalize(net))]
    for name in sorted(QUANTIZED):
        codes = [graph.constant(f"{name}.weight_quantized") for graph in both]
        np.testing.assert_array_equal(*codes)
    assert both[0].build.planned == both[1].build.planned


def test_an_artifact_for_the_cpu_runs_it(
    mlp: Mlp, images: Tensor, workspace: Workspace, tmp_path: Path
) -> None:
    net = adapted(mlp, images, workspace)
    train(net, images)
    artifact = optkit.build(
        qat.finalize(net), images[:4], target="cpu", precision="int4", recipe=RECIPE,
        calibration=list(images.split(8)), out=tmp_path / "out", workspace=workspace,
    )  # fmt: skip
    with torch.no_grad():
        expected = net(images[:8]).numpy()
    (found,) = artifact.run({"image": images[:8].numpy()}).values()
    assert sqnr(expected, found) > 30


def test_saved_adapters_are_those_of_peft_and_switch_beside_the_same_codes(
    mlp: Mlp, images: Tensor, workspace: Workspace, tmp_path: Path
) -> None:
    net = adapted(mlp, images, workspace)
    train(net, images)
    folder = qat.save_adapters(net, tmp_path / "healing")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(mlp), folder)
    for name in QUANTIZED:
        with torch.no_grad():
            product = net.get_submodule(f"{name}.adapter").product()  # type: ignore[operator]
        delta = loaded.base_model.model.get_submodule(name).get_delta_weight("default")
        torch.testing.assert_close(delta, product)
    built = optkit.build(
        mlp, images[:4], target="cpu", precision="int4", recipe=PLAIN,
        calibration=list(images.split(8)), out=tmp_path / "out", workspace=workspace,
    )  # fmt: skip
    document = optkit.package(
        built.path, format="lora", out=tmp_path / "packages", adapters={"healing": folder}
    )
    switched = optkit.load(Path(document["folder"]) / built.name)
    with torch.no_grad():
        expected = net(images[:8]).numpy()
    found = []
    for name in ("healing", None):
        with switched.session(threads=1, adapter=name) as session:
            found.append(*session.run({"image": images[:8].numpy()}).values())
    assert sqnr(expected, found[0]) > max(30, sqnr(expected, found[1]) + 5)


@pytest.mark.slow
def test_an_l4_runs_codes_beside_adapters_in_int4(
    mlp: Mlp, images: Tensor, workspace: Workspace
) -> None:
    net = qat.finalize(adapted(mlp, images, workspace, "l4"))
    built = written(net, images, workspace, "l4", "int4", pipeline.COMPILE).build
    assert built.engine is not None and set(built.planned.values()) == {"int4"}
    assert built.engine.engine.landing.by_dtype["int4"] >= 2  # of 3


def test_refusals_name_the_remedy(mlp: Mlp, images: Tensor, workspace: Workspace) -> None:
    with pytest.raises(errors.UsageError, match="no adapters for int8") as caught:
        adapted(mlp, images, workspace, precision="int8")
    assert caught.value.hint == "int4 or w4a8 or int2 or nf4"
    with pytest.raises(errors.UsageError, match="rank 65, and the weight is") as caught:
        adapted(mlp, images, workspace, rank=65)
    assert "1 to" in str(caught.value.hint) and "node" in str(caught.value.where)
    with pytest.raises(errors.UsageError, match="AWQ changes the layers"):
        adapted(mlp, images, workspace,
                recipe={**RECIPE, "quantization": {"weights": "awq"}})  # fmt: skip
    with pytest.raises(errors.InputRefused, match="no linear layer is quantized in 4 bits"):
        adapted(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval(), images, workspace)
    with pytest.raises(errors.UsageError, match="what becomes of adapters"):
        qat.finalize(adapted(mlp, images, workspace), adapters="drop")  # type: ignore[arg-type]
    plain = qat.prepare(mlp, images[:4], target="cpu", precision="int4", recipe=RECIPE,
                        calibration=list(images.split(8)), workspace=workspace)  # fmt: skip
    with pytest.raises(errors.UsageError, match="no adapters to merge"):
        qat.finalize(plain, adapters="merge")
    with pytest.raises(errors.UsageError, match="no adapters to save"):
        qat.save_adapters(plain, "adapters")
    with pytest.raises(errors.UsageError, match="it exists already"):
        qat.save_adapters(adapted(mlp, images, workspace), Path(__file__).parent)
