"""The layers of a compiled engine as work, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optkit.craft.prediction.compiled import of_engine
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work_time import seconds
from optkit.facts.engines import FusedLayer, LayerTensor
from optkit.facts.errors import InputRefused
from optkit.facts.node_cost import NodeCost
from optkit.ground.devices import target


def tensor(*shape: int, dtype: str = "float16") -> LayerTensor:
    return LayerTensor("t", shape, dtype)


PLAIN = tensor(64, 32)


def layer(
    nodes: tuple[str, ...] = (),
    reads: LayerTensor = PLAIN,
    writes: LayerTensor = PLAIN,
    constants: tuple[LayerTensor, ...] = (),
    **more: object,
) -> FusedLayer:
    return replace(FusedLayer("l", "gemm", (reads,), constants, (writes,), nodes), **more)  # type: ignore[arg-type]


FC = NodeCost("MatMul", 64 * 32 * 16, 2 * 32 * 16, 2 * 64 * 32, 2 * 64 * 16, columns=16, bits=16)


def test_a_product_by_hand() -> None:
    fused = layer(
        ("fc", "relu"), tensor(64, 32, dtype="int8"), tensor(64, 16),
        (tensor(32, 16, dtype="int8"), tensor(16, dtype="float32")),
        products=("fc",), dtype="int8", weight_dtype="int8",
    )  # fmt: skip
    costs = {"fc": FC, "relu": NodeCost("Relu", 0, 0, 2048, 2048)}
    (work,) = of_engine([fused], costs)
    assert (work.kind, work.dtype, work.operations) == ("gemm", "int8", 2 * 64 * 32 * 16)
    assert work.moved == 64 * 32 + 2 * 64 * 16
    assert work.weight_bytes == 32 * 16 + 4 * 16
    assert (work.rows, work.columns) == (64, 16)
    assert (work.unpacked, work.kernels) == (0, 1)


def test_kinds_of_products() -> None:
    scores = NodeCost("MatMul", 1000, 0, 100, 100, columns=10, bits=16)
    conv = NodeCost("Conv", 1000, 10, 100, 100, columns=10, bits=16)
    costs = {"fc": FC, "scores": scores, "conv": conv}
    for products, kind in (
        (("fc",), "gemm"), (("scores", "scores"), "attention"), (("scores", "fc"), "gemm"),
        (("conv",), "conv"), ((), "elementwise"),
    ):  # fmt: skip
        (work,) = of_engine([layer(products, products=products, dtype="float16")], costs)
        assert work.kind == kind


def test_weights_stored_in_another_type_are_unpacked() -> None:
    fused = layer(("fc",), products=("fc",), dtype="float16", weight_dtype="int4")
    (work,) = of_engine([fused], {"fc": FC})
    assert work.unpacked == 32 * 16
    assert work.dtype == "fp16"


def test_a_quantized_weight_is_behind_a_dequantization() -> None:
    """So that the product has no constant input. Its weights are its operations over its rows."""
    bare = replace(FC, weight_bytes=0)
    quantized = layer(("fc",), products=("fc",), dtype="int8", weight_dtype="int8")
    packed = layer(("fc",), products=("fc",), dtype="float16", weight_dtype="int4")
    int8, int4 = of_engine([quantized, packed], {"fc": bare})
    assert (int8.kind, int8.unpacked) == ("gemm", 0)
    assert (int4.kind, int4.unpacked) == ("gemm", 32 * 16)


def test_a_table_that_is_looked_up_counts_by_the_rows_it_gives() -> None:
    """A 50,000 × 32 table of which 64 rows are read."""
    costs = {"embed": NodeCost("Gather", 0, 2 * 50_000 * 32, 8 * 64, 2 * 64 * 32)}
    fused = layer(("embed",), tensor(64, dtype="int64"), tensor(64, 32), (tensor(50_000, 32),))
    (work,) = of_engine([fused], costs)
    assert work.weight_bytes == 2 * 64 * 32
    (whole,) = of_engine([fused], {"embed": replace(costs["embed"], op="MatMul")})
    assert whole.weight_bytes == 2 * 50_000 * 32


def test_a_layer_that_picks_reads_what_it_writes() -> None:
    fused = layer(("first",), tensor(64, 128, 32), tensor(64, 1, 32))
    (work,) = of_engine([fused], {"first": NodeCost("Gather", 0, 0, 0, 0)})
    assert work.moved == 2 * (2 * 64 * 32)


def test_arithmetic_on_shapes_launches_nothing() -> None:
    small, large = layer(reads=tensor(4), writes=tensor(4)), layer()
    assert [work.kernels for work in of_engine([small, large], {})] == [0, 1]


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InputRefused, match="dynamic size"):
        of_engine([layer(reads=tensor(-1, 4))], {})
    with pytest.raises(InputRefused, match="float17"):
        of_engine([layer(("fc",), products=("fc",), dtype="float17")], {"fc": FC})


def test_each_kernel_costs_a_launch() -> None:
    """Two layers that move next to nothing take two launches."""
    l4, eff = target("l4"), fitted().efficiencies
    works = of_engine([layer(), layer()], {})
    clock = float(l4.facts["boost_mhz"].value or 0) * 1e6
    assert seconds(works, l4, eff).launch == pytest.approx(
        2 * eff.kernel_cycles * eff.own["launch 8.9"] / clock
    )
