"""Pools whose window covers the whole picture become global pools; all others stay."""

from __future__ import annotations

import pytest

ALL = "kernel_shape = [2560, 2560], strides = [2560, 2560], ceil_mode = 1"


def build(pool: str, shape: str = "n, 2, 7, 5") -> str:
    return (
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[{shape}] x) => (float[a, b, c, d] y) '
        f"{{ p = Exp(x)  q = {pool}(p)  y = Neg(q) }}"
    )


@pytest.mark.parametrize(
    ("pool", "op"),
    [
        (f"AveragePool<{ALL}>", "GlobalAveragePool"),
        (f"AveragePool<{ALL}, count_include_pad = 1>", "GlobalAveragePool"),
        (f"MaxPool<{ALL}>", "GlobalMaxPool"),
        (
            "AveragePool<kernel_shape = [7, 8], strides = [1, 4], ceil_mode = 1>",
            "GlobalAveragePool",
        ),
    ],
)
def test_a_window_over_everything_is_global(fused, pool: str, op: str) -> None:
    model, log = fused(build(pool), n=3)
    assert [node.op_type for node in model.graph] == ["Exp", op, "Neg"]
    assert log.counts["global_pool"] == 1


@pytest.mark.parametrize(
    "pool",
    [
        "AveragePool<kernel_shape = [7, 5]>",  # as wide as the input: every compiler takes it
        "AveragePool<kernel_shape = [8, 3], strides = [8, 3], ceil_mode = 1>",  # two windows
        "AveragePool<kernel_shape = [8, 6], strides = [8, 6], pads = [1, 1, 0, 0], ceil_mode = 1>",
        "AveragePool<kernel_shape = [4, 3], dilations = [2, 2]>",
    ],
)
def test_other_windows_stay(fused, pool: str) -> None:
    model, log = fused(build(pool), n=3)
    assert "global_pool" not in log.counts
    assert pool.startswith(list(model.graph)[1].op_type)


def test_an_input_of_unknown_size_keeps_its_window(fused) -> None:
    pool = "AveragePool<kernel_shape = [64, 64], strides = [64, 64], ceil_mode = 1>"
    model, _ = fused(build(pool, "n, 2, h, w"), n=3, h=9, w=4)
    assert [node.op_type for node in model.graph] == ["Exp", "AveragePool", "Neg"]
