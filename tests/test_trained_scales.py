"""Scales of a training as text, and text that is none."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.placement.read_weight import ReadWeight
from optkit.craft.quantization.trained import trained_activation, trained_weights
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat
from optkit.ground.trained_scales import (
    KEY,
    BlockScales,
    TrainedActivation,
    TrainedScales,
    TrainedWeight,
)

BLOCKS = np.array([[0.25, -1 / 3], [1e-6, 7.0], [0.1, 0.2]], np.float32)

SCALES = TrainedScales(
    "l4",
    "int8",
    {"x": TrainedActivation(float(np.float32(0.1)), 0)},
    {
        "split": TrainedWeight(float(np.float16(0.01)), (1.0, 1.5)),
        "channels": TrainedWeight((0.25, float(np.float32(1 / 3)))),
        "tensor": TrainedWeight(0.5),
        "blocks": TrainedWeight(BlockScales.of(BLOCKS)),
    },
    ("q.adapter.down", "q.adapter.up"),
)


def test_every_number_comes_back() -> None:
    assert TrainedScales.of({KEY: SCALES.text()}) == SCALES
    assert TrainedScales.of({"other": "text"}) is None
    np.testing.assert_array_equal(SCALES.weight("blocks", (3, 2)).numbers, BLOCKS)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("activations", "x", "scale"), float("nan")),
        (("activations", "x", "scale"), -1.0),
        (("activations", "x", "zero_point"), "zero"),
        (("weights", "split", "ratio"), [1.0, 0.0]),
        (("weights", "channels", "scale"), [[0.25], [0.5]]),
        (("weights", "tensor", "scale"), {}),
        (("weights", "tensor", "more"), 1),
        (("weights", "blocks", "scale"), {"shape": [3, 2]}),
        (("weights", "blocks", "scale", "shape"), [2, 2]),
        (("weights", "blocks", "scale", "shape"), [-1, 2]),
        (("weights", "blocks", "scale", "base64"), "AAAA"),
        (("weights", "blocks", "scale", "base64"), BlockScales.of(BLOCKS * 0).base64),
        (("weights", "blocks", "scale", "base64"), BlockScales.of(BLOCKS * np.inf).base64),
        (("activations",), []),
    ],
)
def test_other_text_is_refused(path: tuple[str, ...], value: object) -> None:
    data = json.loads(SCALES.text())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputRefused, match="trained scales cannot be read") as caught:
        TrainedScales.of({KEY: json.dumps(data)})
    assert caught.value.hint and KEY in str(caught.value.where)
    for text in ("", "{", "[" * 100_000):
        with pytest.raises(InputRefused):
            TrainedScales.of({KEY: text})


def test_scales_of_another_graph_are_refused() -> None:
    with pytest.raises(InputRefused, match="tensor 'y': it has no trained scale"):
        SCALES.activation("y")
    with pytest.raises(InputRefused, match="not \\(3,\\)"):
        SCALES.weight("split", (3,))
    with pytest.raises(InputRefused, match="not \\(3,\\)"):
        SCALES.weight("blocks", (3,))
    with pytest.raises(InputRefused, match="node 'tensor': it was quantized in the training"):
        SCALES.check_all_used({"x"}, {"split", "channels", "blocks"})
    assert SCALES.weight("split", (2,)).ratio == (1.0, 1.5)


def test_scales_are_negative_only_for_kernels_that_take_them() -> None:
    assert signed(True)[0, 0] == -0.5
    with pytest.raises(InputRefused, match="negative"):
        signed(False)


def signed(accepted: bool) -> np.ndarray:
    """The scales [blocks, channels] of a weight [32, 2] whose trained ones are negative."""
    fmt = NumberFormat("int4", "block", True, block_size=32, signed_scale=accepted)
    node = ir.node("MatMul", [ir.val("x"), ir.val("w")], name="n")
    rules = PlacementRules(None, fmt, frozenset({"MatMul"}), False, frozenset(), False)
    ones = Scale(np.ones((1, 2), np.float32), np.zeros((1, 2), np.int8), 0)
    w = np.ones((32, 2), np.float32)
    read = ReadWeight(node, "w", w, fmt, rules, 0, False, None, ones)
    blocks = BlockScales.of(np.array([[-0.5], [0.25]], np.float32))
    trained = TrainedScales("cpu", "int4", {}, {"n": TrainedWeight(blocks)})
    _, ((weight, _),) = trained_weights([read], trained)
    return weight.scale.scale


def test_a_zero_point_is_a_code() -> None:
    fmt = NumberFormat("uint8", "tensor", symmetric=False)
    assert trained_activation(TrainedActivation(0.1, 255), fmt).zero_point == 255
    with pytest.raises(InputRefused, match="256 is no code of uint8"):
        trained_activation(TrainedActivation(0.1, 256), fmt)
