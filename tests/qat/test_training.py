"""A training with fake quantization, and the graph that a build writes from it."""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import optkit
from optkit.facts import errors
from optkit.ground.graph import array as ir_array
from optkit.ground.workspace import Workspace
from optkit.road import pipeline
from optkit.road.pipeline import refusals
from optkit.satellites import qat
from optkit.satellites.qat import placing
from optkit.satellites.qat.agreement import sqnr
from optkit.satellites.qat.fake_quantization import ActivationQuantizer
from optkit.satellites.qat.products import Product
from tests.qat.conftest import RECIPE, Net, Written, train, written

KINDS = [
    ("l4", "int8", "learned"),
    ("cpu", "int8", "fixed"),
    *(pytest.param(kind, marks=pytest.mark.slow)
      for kind in (("l4", "int8", "fixed"), ("l4", "fp8", "learned"), ("cpu", "int8", "learned"))),
]  # fmt: skip


def prepared(
    net: nn.Module, images: Tensor, workspace: Workspace, target: str, scales: Any = "learned",
    precision: str = "int8",
) -> nn.Module:  # fmt: skip
    return qat.prepare(
        net, images[:4], target=target, precision=precision, recipe=RECIPE,
        calibration=list(images.split(8)), scales=scales, workspace=workspace,
    )  # fmt: skip


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def trained(
    request: pytest.FixtureRequest, net: Net, images: Tensor, workspace: Workspace
) -> tuple[nn.Module, str, str]:
    target, precision, scales = request.param
    found = prepared(net, images, workspace, target, scales, precision)
    train(found, images)
    return found, target, precision


@pytest.fixture(scope="module")
def graph(trained: tuple[nn.Module, str, str], images: Tensor, workspace: Workspace) -> Written:
    net, target, precision = trained
    return written(qat.finalize(net), images, workspace, target, precision)


def products(net: nn.Module) -> dict[str, Product]:
    return {name: part for name, part in net.named_modules()
            if isinstance(part, Product) and part.weight_quantizer is not None}  # fmt: skip


def test_a_training_needs_no_compiler_of_the_target(
    net: Net, images: Tensor, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = refusals.installed
    monkeypatch.setattr(refusals, "installed", lambda name: None if "rtx" in name else here(name))
    found = prepared(net, images, workspace, "l4")
    assert any(isinstance(part, Product) for part in found.modules())
    with pytest.raises(errors.ToolchainMissing, match="tensorrt-rtx is not installed"):
        optkit.build(net, images[:4], target="l4", calibration=[images], workspace=workspace)


def test_quantizers_lie_on_the_device_of_the_model(
    trained: tuple[nn.Module, str, str], images: Tensor
) -> None:
    """Here the device `meta`, whose operations refuse tensors of another device as CUDA's do."""
    found, *_ = trained
    plain = copy.deepcopy(qat.finalize(found)).to("meta")
    plan: Any = found.qat_plan
    placing.place(plain, plan, learned=True)
    held = dict(plain.named_parameters()) | dict(plain.named_buffers())
    assert any("quantizer" in name for name in held)
    assert {value.device.type for value in held.values()} == {"meta"}
    assert plain(images.to("meta")).device.type == "meta"


def test_codes_and_scales_are_those_of_the_training(
    trained: tuple[nn.Module, str, str], graph: Written
) -> None:
    net, *_ = trained
    found = products(net)
    assert set(graph.build.planned) == {p.weight_quantizer.node for p in found.values()}  # type: ignore[union-attr]
    for name, product in found.items():
        quantizer = product.weight_quantizer
        assert quantizer is not None
        with torch.no_grad():
            weight, bias = product.folded()
            values, bias = quantizer(weight, bias, product._input_scale())
            scale = product.used_weight_scale()
        codes = graph.constant(f"{name}.weight_quantized")
        if codes.shape != values.shape:
            codes = codes.T  # a Gemm may read [in, out]
        if quantizer.common is not None:
            np.testing.assert_array_equal(
                graph.constant(f"{quantizer.node}_channel_scale").reshape(-1), scale.numpy()
            )
            assert graph.constant(f"{name}.weight_scale") == quantizer.common
            scale = scale * quantizer.common
        else:
            np.testing.assert_array_equal(graph.constant(f"{name}.weight_scale"), scale.numpy())
            assert bias is not None
            steps = graph.constant(f"{quantizer.node}_bias_quantized").astype(np.float32)
            expected = steps * graph.constant(f"{quantizer.node}_bias_scale")
            np.testing.assert_array_equal(bias.numpy(), expected)
        along = scale.reshape(-1, *[1] * (values.ndim - 1)).numpy()
        np.testing.assert_array_equal(codes.astype(np.float32) * along, values.numpy())


def test_the_scales_of_activations_are_those_of_the_training(
    trained: tuple[nn.Module, str, str], graph: Written
) -> None:
    net, *_ = trained
    quantizers = {q.value: q for q in net.modules() if isinstance(q, ActivationQuantizer)}
    pairs = [node for node in graph.graph.graph if node.op_type == "QuantizeLinear"]
    assert len(pairs) == len(quantizers)
    for node in pairs:
        name = str(node.inputs[0].name).removesuffix(".fp16")
        assert graph.constant(node.inputs[1].name) == quantizers[name].used_scale().item()
        assert graph.constant(node.inputs[2].name) == quantizers[name].zero_point


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_outputs_are_those_of_the_training(
    trained: tuple[nn.Module, str, str], graph: Written, images: Tensor, net: Net, batch: int
) -> None:
    """But for codes that a rounding of a sum in float32 flips, which are few."""
    found, *_ = trained
    with torch.no_grad():
        computed = found(images[:batch]).numpy()
        before = net(images[:batch]).numpy()
    expected = graph.run(images[:batch])
    assert sqnr(expected, computed) > 45
    assert sqnr(before, computed) < 30, "the training changed nothing"


def test_a_file_carries_the_scales(
    net: Net, images: Tensor, workspace: Workspace, tmp_path: Path
) -> None:
    """The command builds the exported file as Python builds the module."""
    found = prepared(net, images, workspace, "l4")
    train(found, images)
    file = qat.export(
        found, images[:4], out=tmp_path / "trained", recipe=RECIPE, workspace=workspace
    )
    with pytest.raises(errors.UsageError, match="exists already"):
        qat.export(found, images[:4], out=tmp_path / "trained", workspace=workspace)
    expected = written(qat.finalize(found), images, workspace, "l4").graph.graph.initializers
    computed = written(file, images, workspace, "l4").graph.graph.initializers
    assert computed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ir_array(computed[name]), ir_array(value), err_msg=name)


def test_learned_scales_move(net: Net, images: Tensor, workspace: Workspace) -> None:
    found = prepared(net, images, workspace, "l4")
    before = copy.deepcopy(found.state_dict())
    train(found, images)
    scales = [name for name in before if name.endswith("quantizer.scale")]
    assert len(scales) == len([*found.qat_plan.weights]) * 2  # type: ignore[union-attr, arg-type]
    state = found.state_dict()
    assert all(not torch.equal(before[name], state[name]) for name in scales)


def test_batch_norm_keeps_its_statistics(net: Net, images: Tensor, workspace: Workspace) -> None:
    found = prepared(net, images, workspace, "l4")
    train(found, images)
    for name in ("norm.running_mean", "norm.running_var", "norm1d.running_mean"):
        assert torch.equal(found.state_dict()[name], net.state_dict()[name])
    assert not torch.equal(found.state_dict()["norm.weight"], net.state_dict()["norm.weight"])


def test_the_model_that_was_given_does_not_change(
    net: Net, images: Tensor, workspace: Workspace
) -> None:
    with torch.no_grad():
        before = net(images)
        prepared(net, images, workspace, "cpu")
        assert type(net.stem) is nn.Conv2d and torch.equal(net(images), before)


def test_a_state_goes_there_and_back(net: Net, images: Tensor, workspace: Workspace) -> None:
    found = prepared(net, images, workspace, "cpu")
    names = found.state_dict().keys()
    assert names > net.state_dict().keys()
    train(found, images)
    other = prepared(net, images, workspace, "cpu")
    other.load_state_dict(found.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(images), found(images))
    found.load_state_dict(net.state_dict())  # of the float model: the scales stay
    Net().load_state_dict({n: v for n, v in found.state_dict().items() if "quantizer" not in n})


def test_averages_and_wrappers_are_finalized(
    net: Net, images: Tensor, workspace: Workspace
) -> None:
    found = prepared(net, images, workspace, "cpu")
    averaged = AveragedModel(found)
    for _ in range(2):
        train(found, images)
        averaged.update_parameters(found)
    plain = qat.finalize(averaged)
    assert plain.trained_scales != qat.finalize(found).trained_scales
    assert type(plain.stem) is nn.Conv2d and type(plain.blocks[0].norm1) is nn.Identity  # type: ignore[index]
    assert not plain.training


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_compiled_checkpointed_and_mixed(net: Net, images: Tensor, workspace: Workspace) -> None:
    """torch.compile and gradient checkpointing give the same gradients; autocast runs."""
    found = prepared(net, images, workspace, "cpu")
    ways = {
        "plain": found,
        "compiled": torch.compile(found, backend="aot_eager", fullgraph=True),
        "checkpointed": lambda x: checkpoint(found, x, use_reentrant=False),
        "blocks": lambda x: _in_blocks(found, x),
    }
    results = {}
    for name, way in ways.items():
        found.zero_grad()
        way(images).square().sum().backward()
        results[name] = gradients(found)
        assert len(results[name]) == len(list(found.parameters()))
    for name in ways:
        for expected, computed in zip(results["plain"], results[name], strict=True):
            torch.testing.assert_close(computed, expected, rtol=1e-3, atol=1e-4 * float(
                expected.abs().max() + 1))  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        mixed = found(images)
    assert sqnr(found(images).detach().numpy(), mixed.detach().float().numpy()) > 25


def _in_blocks(net: Any, image: Tensor) -> Tensor:
    """The forward of Net, with a checkpoint around each block."""
    x = net.pool(torch.relu(net.norm(net.stem(image))))
    for block in net.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    hidden: Tensor = net.head(torch.relu(net.norm1d(net.hidden(x.mean(dim=(2, 3))))))
    return hidden


def test_scales_of_another_target_are_refused(
    net: Net, images: Tensor, workspace: Workspace
) -> None:
    plain = qat.finalize(prepared(net, images, workspace, "l4"))
    with pytest.raises(errors.InputRefused, match="trained for l4 in int8"):
        written(plain, images, workspace, "cpu")


class Functional(nn.Module):
    """A product in the code of the module"""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, 3, 3))

    def forward(self, image: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(image, self.weight).flatten(2)


class Twice(nn.Module):
    """A module that runs twice"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(torch.tanh(self.conv(image))).flatten(2)


class Shared(nn.Module):
    """A convolution whose result BatchNorm is not alone to read"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)
        self.norm.running_mean += 1.0  # type: ignore[assignment, operator]
        self.last, self.own = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv(image)
        return self.own(self.last(torch.tanh(self.norm(x)) + x)).flatten(2)


def test_batch_norm_that_shares_its_input_is_not_folded(
    images: Tensor, workspace: Workspace
) -> None:
    plain = qat.finalize(prepared(Shared().eval(), images, workspace, "l4"))
    assert type(plain.norm) is nn.BatchNorm2d and type(plain.own) is nn.Identity


def test_a_module_that_runs_twice_is_refused(images: Tensor, workspace: Workspace) -> None:
    with pytest.raises(errors.InputRefused, match="runs more than once") as caught:
        prepared(Twice().eval(), images, workspace, "l4")
    assert '"nodes": {"conv/*": "fp16"}' in str(caught.value.hint)


def test_what_it_does_not_quantize_is_named(images: Tensor, workspace: Workspace) -> None:
    with pytest.raises(errors.InputRefused, match="Functional computes it") as caught:
        prepared(Functional(), images, workspace, "l4")
    assert "nodes" in str(caught.value.hint)


def test_parameters_of_half_precision_are_refused(net: Net, images: Tensor) -> None:
    half = copy.deepcopy(net).half()
    for prepare in (qat.prepare, qat.prepare_adapters):
        with pytest.raises(
            errors.InputRefused, match=r"parameter '.*' is torch\.float16"
        ) as caught:
            prepare(half, images, target="cpu", precision="int4")
        assert "model.float()" in str(caught.value.hint)


def test_a_prepared_module_is_refused(images: Tensor, workspace: Workspace) -> None:
    once = prepared(Shared().eval(), images, workspace, "l4")
    with pytest.raises(errors.UsageError, match="prepared already"):
        prepared(once, images, workspace, "l4")


def test_wrong_calls_are_refused(net: Net, images: Tensor) -> None:
    with pytest.raises(errors.UsageError, match="not prepared"):
        qat.finalize(net)
    with pytest.raises(errors.UsageError, match="no kind of scales"):
        qat.prepare(net, images, target="l4", scales="none")  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="does not train fp16"):
        qat.prepare(net, images, target="l4", precision="fp16")


@pytest.mark.slow
def test_it_lands_as_the_build_without_training(
    net: Net, images: Tensor, workspace: Workspace
) -> None:
    """TensorRT-RTX compiles both for an L4: the same layers, which move the same bytes."""
    found = prepared(net, images, workspace, "l4")
    train(found, images)
    without, after = (
        written(module, images, workspace, "l4", stages=pipeline.COMPILE).build.engine
        for module in (net, qat.finalize(found))
    )
    assert without is not None and after is not None
    before, found_engine = without.engine, after.engine
    assert found_engine.landing.landed == found_engine.landing.planned == len(products(found))
    assert [layer.kind for layer in found_engine.layers] == [layer.kind for layer in before.layers]
    assert found_engine.bytes_moved == before.bytes_moved is not None


class NormWithActivation(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: the parts run after the normalization."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop, self.act = nn.Identity(), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.act(self.drop(super().forward(x)))
        return found


class Deep(nn.Module):
    """Many layers, each of which the rounding of the last one changes; their results are read in
    codes by a pool too, not only by products."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), NormWithActivation(16))
        layers = [(nn.Conv2d(16, 16, 3, padding=1, bias=False), NormWithActivation(16))
                  for _ in range(12)]  # fmt: skip
        self.layers = nn.Sequential(*[nn.Sequential(*pair) for pair in layers])
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.head(self.pool(self.layers(self.stem(image))).flatten(1))
        return found


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_norms_with_their_activation_and_pools_that_read_codes(
    images: Tensor, workspace: Workspace, target: str
) -> None:
    torch.manual_seed(0)
    net = Deep()
    for _ in range(4):
        net(images)
    found = prepared(net.eval(), images, workspace, target)
    train(found, images, steps=1)
    plain = qat.finalize(found)
    assert [name for name, _ in plain.named_modules()] == [name for name, _ in net.named_modules()]
    scales = plain.trained_scales
    assert scales is not None and len(scales.weights) == 14
    with torch.no_grad():  # close: only the rounding of activations and weights is left out
        assert sqnr(plain(images).numpy(), found(images).numpy()) > 10


class Coded(nn.Module):
    """A product in its own code, behind a layer whose result a CPU computes in codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(576, 16), nn.Parameter(torch.randn(16, 16) / 4)
        self.head = nn.Linear(16, 5)

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.head(
            torch.relu(torch.relu(self.first(image.flatten(1))) @ self.weight)
        )
        return found


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_the_hint_for_a_product_in_code_leaves_it_in_float(
    images: Tensor, workspace: Workspace, target: str
) -> None:
    torch.manual_seed(0)
    net, batches = Coded().eval(), list(images.split(8))
    wanted: dict[str, Any] = {"target": target, "calibration": batches, "workspace": workspace}
    with pytest.raises(errors.InputRefused) as refused:
        qat.prepare(net, images[:4], recipe=RECIPE, **wanted)
    assert refused.value.hint is not None
    hinted = ast.literal_eval(refused.value.hint.partition("recipe=")[2])
    found = qat.prepare(net, images[:4], recipe=RECIPE | hinted, **wanted)
    assert set(products(found)) == {"first", "head"}


class Attending(nn.Module):
    """An attention of torch: its own code computes the products of queries, keys, values and
    results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(144, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(image.flatten(2))
        found: Tensor = self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))
        return found


def test_the_hint_names_all_products_of_an_attention(images: Tensor, workspace: Workspace) -> None:
    torch.manual_seed(0)
    net = Attending().eval()
    with pytest.raises(errors.InputRefused, match="the hint names 1 more such node") as refused:
        prepared(net, images, workspace, "cpu")
    assert refused.value.hint is not None and refused.value.hint.startswith("leave them in float")
    hinted = ast.literal_eval(refused.value.hint.partition("recipe=")[2])
    assert len(hinted["quantization"]["nodes"]) == 2
    found = qat.prepare(net, images[:4], target="cpu", recipe=RECIPE | hinted,
                        calibration=list(images.split(8)), workspace=workspace)  # fmt: skip
    assert set(products(found)) == {"first", "head"}


_RANK = """
import sys, torch
from pathlib import Path
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from optkit import qat
from optkit.ground.workspace import Workspace
from tests.qat.conftest import RECIPE, Net, train

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
images = torch.load(folder / "images.pt")
net = Net()
net.load_state_dict(torch.load(folder / "net.pt"))
store = distributed.FileStore(str(folder / "ranks"), 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
found = qat.prepare(net.eval(), images[:4], target="l4", recipe=RECIPE,
                    calibration=list(images.split(8)), workspace=Workspace(folder / str(rank)))
train(DistributedDataParallel(found), images[rank::2])
torch.save(found.state_dict(), folder / f"{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_learn_the_same_scales(net: Net, images: Tensor, tmp_path: Path) -> None:
    """Each trains on half of the images; DistributedDataParallel averages the gradients."""
    torch.save(images, tmp_path / "images.pt")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    (tmp_path / "rank.py").write_text(_RANK)
    ranks = [
        subprocess.Popen([sys.executable, tmp_path / "rank.py", tmp_path, str(rank)])
        for rank in range(2)
    ]
    assert [rank.wait(timeout=600) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert any(name.endswith("quantizer.scale") for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_an_artifact_is_built_and_gated(
    net: Net, images: Tensor, workspace: Workspace, tmp_path: Path
) -> None:
    found = prepared(net, images, workspace, "cpu")
    train(found, images)
    artifact = optkit.build(
        qat.finalize(found), images[:4], target="cpu", precision="int8", name="net",
        recipe={**RECIPE, "bench": {"seconds": 0.05, "warmup_seconds": 0.02}},
        calibration=list(images.split(8)), out=tmp_path, workspace=workspace,
    )  # fmt: skip
    with optkit.load(artifact.path) as session, torch.no_grad():
        (logits,) = session.run({"image": images[:8].numpy()}).values()
        assert sqnr(found(images[:8]).numpy(), logits) > 40
