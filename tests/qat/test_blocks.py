"""Weights in blocks: INT4 for a GPU, and on a CPU with inputs that the kernel rounds to 8 bits."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from optkit.craft.quantization.numerics import run_time_blocks
from optkit.facts import errors
from optkit.facts.precisions import NumberFormat
from optkit.ground.workspace import Workspace
from optkit.road import pipeline
from optkit.satellites import qat
from optkit.satellites.qat.agreement import sqnr
from optkit.satellites.qat.fake_quantization import RunTimeQuantizer
from optkit.satellites.qat.products import Product
from tests.qat.conftest import RECIPE, Tied, Written, train, written

KINDS = [("l4", "int4", "learned"), ("l4", "int4", "fixed"),
         ("cpu", "w4a8", "learned"), ("cpu", "int4", "fixed"),
         ("cpu", "int2", "learned")]  # fmt: skip


class Mixer(nn.Module):
    """image [B, 4, 12, 12] → logits [B, 5]. Products of values of rank 3 and 2, one before
    BatchNorm; `narrow` sums 40 numbers, which blocks of 32 do not divide; a table of embeddings
    whose rows are read by position."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(300, 64)
        self.mix, self.narrow = nn.Linear(144, 64), nn.Linear(64, 40)
        self.hidden, self.norm = nn.Linear(40, 64), nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 5, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        places = (image[:, :, 0, 0] * 299).long().clamp(0, 299)
        x = torch.relu(self.mix(image.flatten(2)) + self.position(places))
        x = torch.relu(self.narrow(x)).mean(1)
        return cast(Tensor, self.head(torch.relu(self.norm(self.hidden(x)))))


@pytest.fixture(scope="module")
def mixer(images: Tensor) -> Mixer:
    torch.manual_seed(0)
    net = Mixer()
    for _ in range(4):
        net(images * torch.rand(1) + torch.rand(1))
    return net.eval()


def prepared(
    net: nn.Module, images: Tensor, workspace: Workspace, target: str, precision: str, scales: Any
) -> nn.Module:
    return qat.prepare(
        net, images[:4], target=target, precision=precision, recipe=RECIPE,
        calibration=list(images.split(8)), scales=scales, workspace=workspace,
    )  # fmt: skip


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def trained(
    request: pytest.FixtureRequest, mixer: Mixer, images: Tensor, workspace: Workspace
) -> tuple[nn.Module, Written]:
    target, precision, scales = request.param
    net = prepared(mixer, images, workspace, target, precision, scales)
    train(net, images)
    return net, written(qat.finalize(net), images, workspace, target, precision)


def products(net: nn.Module) -> dict[str, Product]:
    return {name: part for name, part in net.named_modules() if isinstance(part, Product)}


def stored(graph: Written, name: str, node: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes [channels, K] and scales [channels, blocks] in the graph, as the format of ONNX or
    of ONNX Runtime's MatMulNBits says."""
    codes, scale = (graph.constant(f"{name}.weight_{part}") for part in ("quantized", "scale"))
    (reader,) = (n for n in graph.graph.graph if n.name == node)
    if reader.op_type == "MatMulNBits":
        bits, k = (reader.attributes.get_int(key) for key in ("bits", "K"))
        assert bits is not None and k is not None
        shifted = [codes >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        codes = np.stack(shifted, axis=-1)
        return codes.reshape(len(codes), -1)[:, :k].astype(np.int32) - (1 << bits - 1), scale
    codes, scale = codes.astype(np.int32), scale.astype(np.float32)
    turned = graph.graph.graph.initializers[f"{name}.weight_quantized"].consumers()
    (dequantize,) = turned
    by_rows = dequantize.attributes.get_int("axis") == 1
    return (codes, scale) if by_rows else (codes.T, scale.T)


def test_codes_and_scales_are_those_of_the_training(trained: tuple[nn.Module, Written]) -> None:
    net, graph = trained
    found = products(net)
    assert set(found) == {"mix", "narrow", "hidden", "head"}
    for name, product in found.items():
        quantizer = product.weight_quantizer
        assert quantizer is not None and quantizer.node in graph.build.planned
        with torch.no_grad():
            weight, bias = product.folded()
            values = quantizer(weight, bias, None)[0].numpy()
            scale = product.used_weight_scale().numpy()
        codes, in_graph = stored(graph, name, quantizer.node)
        np.testing.assert_array_equal(in_graph, scale)
        size = quantizer.format.block_size
        assert size is not None and codes.shape == values.shape
        along = np.repeat(scale, size, axis=1)[:, : values.shape[1]]
        np.testing.assert_array_equal(codes.astype(np.float32) * along, values)
        assert len(np.unique(codes)) > min(10, (1 << quantizer.format.bits) - 1)


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_outputs_are_those_of_the_training(
    trained: tuple[nn.Module, Written], images: Tensor, mixer: Mixer, batch: int
) -> None:
    net, graph = trained
    with torch.no_grad():
        computed, before = net(images[:batch]).numpy(), mixer(images[:batch]).numpy()
    expected = graph.run(images[:batch])
    # FP16 rounds five times, each 72 dB for itself and more behind a Relu (61 to 66 dB together);
    # a sum in another order may give an input of a CPU's product another code
    assert sqnr(expected, computed) > (100 if graph.build.job.target.is_cpu else 57)
    assert sqnr(before, computed) < 30, "the training changed nothing"


def test_learned_scales_of_blocks_move(mixer: Mixer, images: Tensor, workspace: Workspace) -> None:
    net = prepared(mixer, images, workspace, "cpu", "int4", "learned")
    scales = {name: p.clone() for name, p in net.named_parameters() if "quantizer" in name}
    assert {name: tuple(scale.shape) for name, scale in scales.items()} == {
        "mix.weight_quantizer.scale": (64, 5), "narrow.weight_quantizer.scale": (40, 2),
        "hidden.weight_quantizer.scale": (64, 2), "head.weight_quantizer.scale": (5, 1),
    }  # fmt: skip
    starts = {name: start for name, start in net.named_buffers() if name.endswith("start")}
    assert len(starts) == len(scales)
    assert all((start < 0).any() for name, start in starts.items() if "head" not in name)
    train(net, images)
    for name, parameter in net.named_parameters():
        assert "quantizer" not in name or not torch.equal(parameter, scales[name])


def test_embeddings_have_the_numbers_of_the_graph(trained: tuple[nn.Module, Written]) -> None:
    net, graph = trained
    table = net.get_submodule("position")
    with torch.no_grad():
        rows = table(torch.arange(300)).numpy()
    if "position.weight_quantized" not in graph.graph.graph.initializers:
        assert graph.build.job.target.name == "l4"
        np.testing.assert_array_equal(rows, table.get_parameter("weight").detach().numpy())
        return
    codes, scale = (graph.constant(f"position.weight_{end}") for end in ("quantized", "scale"))
    np.testing.assert_array_equal(rows, codes.astype(np.float32) * scale)


def test_inputs_are_rounded_as_the_quantizer_says() -> None:
    x = torch.randn(6, 80, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.no_grad():
        x[0, :32] = 0
    y = RunTimeQuantizer(32)(x)
    fmt = NumberFormat("int8", "block", symmetric=True, block_size=32)
    np.testing.assert_array_equal(y.detach(), run_time_blocks.rounded(x.detach().numpy(), fmt))
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_shared_weights_stay_shared(images: Tensor, workspace: Workspace, target: str) -> None:
    torch.manual_seed(0)
    net = prepared(Tied().eval(), images, workspace, target, "int4", "learned")
    train(net, images)
    plain = qat.finalize(net)
    assert plain.get_parameter("head.weight") is plain.get_parameter("embedding.weight")
    with torch.no_grad():
        computed = net(images[:4]).numpy()
    graph = written(plain, images, workspace, target, "int4")
    assert sqnr(graph.run(images[:4]), computed) > 50


def test_compiled(mixer: Mixer, images: Tensor, workspace: Workspace) -> None:
    """torch.compile gives the same gradients."""
    net = prepared(mixer, images, workspace, "cpu", "w4a8", "learned")
    found = []
    for way in (net, torch.compile(net, backend="aot_eager", fullgraph=True)):
        net.zero_grad()
        way(images).square().sum().backward()
        found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    assert len(found[0]) == len(list(net.parameters()))
    for expected, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_it_lands_as_the_build_without_training(
    mixer: Mixer, images: Tensor, workspace: Workspace
) -> None:
    """TensorRT-RTX compiles both for an L4: the same layers, which move the same bytes."""
    net = prepared(mixer, images, workspace, "l4", "int4", "learned")
    train(net, images)
    before, after = (
        written(module, images, workspace, "l4", "int4", pipeline.COMPILE).build.engine
        for module in (mixer, qat.finalize(net))
    )
    assert before is not None and after is not None
    assert after.engine.landing == before.engine.landing
    assert after.engine.landing.by_dtype["int4"] > 0
    assert [layer.kind for layer in after.engine.layers] == [
        layer.kind for layer in before.engine.layers
    ]
    assert after.engine.bytes_moved == before.engine.bytes_moved is not None


def test_precisions_without_a_training_are_named(mixer: Mixer, images: Tensor) -> None:
    with pytest.raises(errors.UsageError, match="does not train nvfp4") as caught:
        qat.prepare(mixer, images[:4], target="rtx5090", precision="nvfp4")
    assert "int4" in str(caught.value.hint)
