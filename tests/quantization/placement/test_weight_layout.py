"""How a stored weight's scales lie, and what one per output channel would give."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.placement.weight_layout import (
    by_channel_db,
    granularity,
    use_of_codes,
)

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((6, 4)).astype(np.float32)


def parsed(text: str, **numbers: np.ndarray) -> ir.Model:
    """The graph with these inputs as constants."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    for value in [value for value in model.graph.inputs if value.name in numbers]:
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(numbers[str(value.name)], name=value.name)
        model.graph.register_initializer(value)
    return model


def product(pair: str, scale: np.ndarray) -> ir.Node:
    """x · (codes [6, 4] behind a DequantizeLinear with these attributes)."""
    shape = f"[{','.join(map(str, scale.shape))}]" if scale.ndim else ""
    model = parsed(
        f"""g (float[N,6] x, int8[6,4] codes, float{shape} s) => (float[N,4] y) {{
  [dq] w = DequantizeLinear {pair} (codes, s)
  [node] y = MatMul (x, w)
}}""",
        codes=np.full((6, 4), 100, np.int8),
        s=scale.astype(np.float32),
    )
    return model.graph[1]


@pytest.mark.parametrize(
    ("pair", "shape", "expected"),
    [
        ("", (), "tensor"),
        ("<axis=1>", (4,), "channel"),
        ("<axis=-1>", (4,), "channel"),
        ("<axis=0>", (6,), "summed"),
        ("<axis=0, block_size=2>", (3, 4), "block"),
    ],
)
def test_where_the_scales_of_a_matrix_lie(pair: str, shape: tuple[int, ...], expected: str) -> None:
    assert granularity(product(pair, np.ones(shape))) == expected


def test_ratios_behind_the_product_count_as_scales_per_channel() -> None:
    model = parsed(
        """g (float[N,6] x, int8[6,4] codes, float s, float[4] ratio) => (float[N,4] y) {
  [dq] w = DequantizeLinear (codes, s)
  [node] y0 = MatMul (x, w)
  [mul] y = Mul (y0, ratio)
}""",
        codes=np.ones((6, 4), np.int8),
        s=np.ones((), np.float32),
        ratio=np.ones(4, np.float32),
    )
    assert granularity(model.graph[1]) == "channel"


FLOAT = "g (float[N,6] x, float[6,4] w) => (float[N,4] y) { [node] y = MatMul (x, w) }"


def test_a_weight_that_is_no_code_has_none() -> None:
    assert granularity(parsed(FLOAT, w=WEIGHT).graph[0]) is None


def test_what_scales_per_channel_would_give() -> None:
    scale = np.abs(WEIGHT).max(axis=0).astype(np.float64) / 127
    rounded = np.rint(WEIGHT / scale) * scale
    expected = 10 * np.log10(np.square(WEIGHT).sum() / np.square(WEIGHT - rounded).sum())
    found = by_channel_db(parsed(FLOAT, w=WEIGHT).graph[0], product("<axis=1>", np.ones(4)))
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("shrunk", "least", "most"), [(1.0, 0.0, 0.0), (0.3, 0.2, 0.6)])
def test_the_largest_code_of_a_channel_is_not_saturated(
    shrunk: float, least: float, most: float
) -> None:
    """In a depthwise kernel of 3 x 3 it is a ninth of all codes."""
    kernel = RNG.standard_normal((8, 1, 3, 3)).astype(np.float32)
    scale = np.abs(kernel).max(axis=(1, 2, 3)) / 127 * np.float32(shrunk)
    codes = np.clip(np.rint(kernel / scale.reshape(-1, 1, 1, 1)), -127, 127).astype(np.int8)
    model = parsed(
        """g (float[N,8,9,9] x, int8[8,1,3,3] codes, float[8] s) => (float[N,8,7,7] y) {
  [dq] w = DequantizeLinear <axis=0> (codes, s)
  [node] y = Conv <group=8> (x, w)
}""",
        codes=codes,
        s=scale,
    )
    use = use_of_codes(model.graph[1])
    assert use is not None and use.reach == 1.0 and least <= use.saturated <= most
