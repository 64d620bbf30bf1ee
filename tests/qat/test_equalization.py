"""A training begins with the equalization of the build, in the parameters of the module."""

from __future__ import annotations

import copy
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from optkit.craft.quantization.rescaling.factors import Factor, load, save
from optkit.ground.workspace import Workspace
from optkit.satellites import qat
from optkit.satellites.qat import products
from optkit.satellites.qat.agreement import sqnr
from optkit.satellites.qat.distillation import Teacher
from optkit.satellites.qat.equalization import _parameters, multiply
from tests.qat.conftest import RECIPE, train, written

ONE_TERM = {**RECIPE, "quantization": {"smooth": "off", "two_term": []}}
OFF = {**RECIPE, "quantization": {"equalize": "off"}}


class Chain(nn.Module):
    """image [B, 4, 12, 12] → [B, 6]: convolutions whose channels have very different ranges, with
    and without BatchNorm, one of them depthwise and one in groups, and a linear layer behind a
    Flatten. `factor`: None, or what multiplies channels between two of them."""

    def __init__(self, factor: Tensor | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 16, 3, bias=False), nn.BatchNorm2d(16)
        self.depth, self.after = nn.Conv2d(16, 16, 3, groups=16), nn.BatchNorm2d(16)
        self.groups = nn.Conv2d(16, 8, 3, groups=2)
        self.last = nn.Conv2d(8, 6, 3)
        self.register_buffer("factor", factor)
        spread = torch.exp(1.5 * torch.randn(16))
        with torch.no_grad():
            self.norm.weight.mul_(spread)
            self.norm.bias.normal_().mul_(spread)
            self.depth.weight.div_(spread.reshape(-1, 1, 1, 1))
            self.groups.weight.mul_(torch.exp(torch.randn(8)).reshape(-1, 1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.after(self.depth(F.relu(self.norm(self.first(image))))))
        x = F.relu(self.groups(x))
        if self.factor is not None:
            x = x * self.factor
        return cast(Tensor, self.last(x).mean((2, 3)))


@pytest.fixture(scope="module")
def chain(images: Tensor) -> Chain:
    torch.manual_seed(3)
    net = Chain()
    for _ in range(4):
        net(images * torch.rand(1) + torch.rand(1))
    return net.eval()


def prepared(
    net: nn.Module, images: Tensor, workspace: Workspace, target: str = "l4",
    recipe: dict[str, object] = RECIPE, scales: qat.Scales = "learned",
) -> nn.Module:  # fmt: skip
    return qat.prepare(
        net, images[:4], target=target, recipe=recipe, scales=scales, workspace=workspace,
        calibration=list(images.split(8)),
    )  # fmt: skip


def in_db(net: nn.Module, expected: nn.Module, images: Tensor) -> float:
    with torch.no_grad():
        return sqnr(expected(images).numpy(), net.eval()(images).numpy())


def factors(net: nn.Module) -> dict[str, Tensor]:
    return cast("dict[str, Tensor]", net.qat_factors)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("l4", {"after.weight", "after.bias", "groups.weight", "groups.bias", "last.weight"}),
        ("cpu", {"norm.weight", "norm.bias", "depth.weight"}),  # on CPUs of every kind
    ],
)
def test_the_training_begins_where_the_build_with_equalization_ends(
    chain: Chain, images: Tensor, workspace: Workspace, target: str, names: set[str]
) -> None:
    first = prepared(chain, images, workspace, target)
    assert factors(first).keys() >= names
    found = written(qat.finalize(first), images, workspace, target)
    expected = written(chain, images, workspace, target, recipe=ONE_TERM)
    scales = [
        name for name in expected.graph.graph.initializers
        if name.endswith(("weight_scale", "channel_scale"))
    ]  # fmt: skip
    assert scales
    for name in scales:
        np.testing.assert_allclose(found.constant(name), expected.constant(name), rtol=1e-5)
    logits = expected.run(images)
    assert sqnr(logits, found.run(images)) > 35
    without = prepared(chain, images, workspace, target, OFF)
    assert not factors(without)
    assert in_db(first, chain, images) > in_db(without, chain, images) + 1


def test_a_trained_module_is_written_as_it_is(
    chain: Chain, images: Tensor, workspace: Workspace
) -> None:
    net = prepared(chain, images, workspace)
    train(net, images)
    graph = written(qat.finalize(net), images, workspace, "l4")
    with torch.no_grad():
        trained = net(images).numpy()
    assert sqnr(trained, graph.run(images)) > 40
    assert in_db(net, chain, images) < 25, "the training changed nothing"


@pytest.mark.parametrize("scales", ["learned", "fixed"])
def test_a_state_of_the_float_model_gets_the_factors(
    chain: Chain, images: Tensor, workspace: Workspace, scales: qat.Scales
) -> None:
    net = prepared(chain, images, workspace, scales=scales)
    before, state = in_db(net, chain, images), copy.deepcopy(net.state_dict())
    given = chain.state_dict()
    kept = copy.deepcopy(given)
    train(net, images)
    missing = net.load_state_dict(given)
    assert not missing.missing_keys and not missing.unexpected_keys
    assert all(torch.equal(given[name], kept[name]) for name in kept), "the given state changed"
    for name, factor in factors(net).items():
        torch.testing.assert_close(net.get_parameter(name).double(), kept[name] * factor)
    if scales == "fixed":
        assert in_db(net, chain, images) > before - 3
    inside = nn.ModuleDict({"net": net})
    inside.load_state_dict({f"net.{name}": number for name, number in kept.items()})
    expected = kept["groups.weight"] * factors(net)["groups.weight"]
    torch.testing.assert_close(net.get_parameter("groups.weight").double(), expected)
    net.load_state_dict(state)  # of a prepared module: as it is
    assert in_db(net, chain, images) == pytest.approx(before, abs=0.01)


def test_the_finalized_module_takes_states_as_they_are(
    chain: Chain, images: Tensor, workspace: Workspace
) -> None:
    plain = qat.finalize(prepared(chain, images, workspace))
    state = {name: 2 * number for name, number in plain.state_dict().items()}
    plain.load_state_dict(state)
    assert all(torch.equal(number, state[name]) for name, number in plain.state_dict().items())


def test_features_have_the_units_of_the_student(
    chain: Chain, images: Tensor, workspace: Workspace
) -> None:
    net = prepared(chain, images, workspace)
    loss = qat.Distillation(net, features=["norm", "groups"])
    with torch.no_grad():
        assert float(loss(net(images), images)) < 0.01
    teacher = cast(Teacher, net.qat_teacher)
    equalized = teacher.equalized().module
    assert in_db(equalized, chain, images) > 100
    for module, same in ((teacher.module, True), (equalized, False)):
        weight = module.get_parameter("groups.weight")
        assert torch.equal(weight, chain.groups.weight) is same
        assert module.get_parameter("first.weight").data_ptr() == chain.first.weight.data_ptr()


def test_a_factor_in_a_constant_leaves_all_as_it_is(images: Tensor, workspace: Workspace) -> None:
    """The Mul takes the factor of `last`; its constant is no parameter that is known."""
    torch.manual_seed(3)
    net = Chain(torch.exp(2 * torch.randn(8, 1, 1))).eval()
    once = iter(images.split(8))
    first = qat.prepare(
        net, images[:4], target="l4", recipe=RECIPE, calibration=once, workspace=workspace
    )
    assert not factors(first)
    off = prepared(net, images, workspace, recipe=OFF)
    for name, parameter in off.named_parameters():
        assert torch.equal(parameter, first.get_parameter(name)), name


sizes = st.integers(1, 5)


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 9), sizes, sizes), max_size=4))
def test_factors_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, int, int, int]]
) -> None:
    draw = np.random.default_rng(0)
    given_ = [Factor(node, index, draw.random((n, k)).T) for node, index, n, k in parts]
    file = tmp_path_factory.mktemp("factors") / "factors.safetensors"
    save(given_, file)
    found = load(file)
    assert [(each.node, each.index) for each in found] == [(node, at) for node, at, *_ in parts]
    for each, other in zip(found, given_, strict=True):
        np.testing.assert_array_equal(each.numbers, other.numbers)


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
def test_a_factor_reaches_what_the_product_multiplies(
    groups: int, bias: bool, norm: bool, made: bool, seed: int
) -> None:
    """Of a convolution that reads a value with factors, and makes one where `made`."""
    torch.manual_seed(seed)
    conv, after = nn.Conv2d(4, 8, 3, groups=groups, bias=bias), nn.BatchNorm2d(8).eval()
    for parameter in (*after.parameters(), after.running_mean):
        nn.init.normal_(cast(Tensor, parameter))
    if norm:
        products.fold(conv, after)
    product = products.as_product(conv)
    with torch.no_grad():
        weight, offset = (None if x is None else x.double().clone() for x in product.folded())
    assert weight is not None
    read = torch.rand(groups, 4 // groups).double() + 0.5
    of_read = read.repeat_interleave(8 // groups, 0)[:, :, None, None]
    of_made = torch.rand(8).double() + 0.5 if made else torch.ones(8).double()
    given_ = {1: (of_read * of_made.reshape(-1, 1, 1, 1)).numpy()}
    if made and offset is not None:
        given_[2] = of_made.numpy()
    node = ir.node("Conv", [ir.val("x"), ir.val("w")])
    with torch.no_grad():
        for changed, numbers in _parameters(product, node, given_):
            assert changed is not None
            changed *= torch.from_numpy(numbers)
        after_weight, after_offset = product.folded()
    expected = (weight * torch.from_numpy(given_[1])).float()
    torch.testing.assert_close(after_weight, expected, rtol=1e-4, atol=1e-6)
    if offset is not None:
        assert after_offset is not None
        expected = (offset * of_made).float()
        torch.testing.assert_close(after_offset, expected, rtol=1e-4, atol=1e-5)


def test_a_parameter_is_multiplied_in_double_precision() -> None:
    net = nn.Linear(3, 2)
    before = net.weight.detach().clone()
    factor = torch.tensor([[1 / 3], [3.0]], dtype=torch.float64)
    multiply(net, {"weight": factor})
    assert torch.equal(net.weight, (before.double() * factor).float())
