"""The fastest form of a product whose activation needs more than one scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends.kernel_speeds import kernel_speeds
from optkit.craft.quantization.placement.product_forms import MARGIN, Products, fastest, products
from optkit.facts.placement import ConvSpeed, KernelSpeeds, OperatorSpeed, ProductSpeeds
from optkit.ground.devices import target
from tests.networks import network

CONV, OPERATOR = ConvSpeed(1.0, 1.0, 0.0, 0.0), OperatorSpeed(0.0, 0.0)
WIDE = Products(128, 768, 768)


def speeds(**product: float) -> KernelSpeeds:
    """Of codes 400, of blocks 100, of floats 100; terms and their sum cost nothing."""
    free = {"first_term_ns": 0.0, "second_term_ns": 0.0, "terms_sum_ns": 0.0}
    each = {"float_gmacs": 100.0, "int8_gmacs": 400.0, "blocks_gmacs": 100.0, **free, **product}
    return KernelSpeeds(
        CONV, CONV, CONV, ProductSpeeds(**each), OPERATOR, OPERATOR, "a cpu of the test"
    )


@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({}, "two terms"),  # twice as fast as the others
        ({"int8_gmacs": 2 * MARGIN * 100 - 1, "float_gmacs": 90}, "int8-weight-only"),
        ({"int8_gmacs": 2 * MARGIN * 100 + 1}, "two terms"),
        ({"blocks_gmacs": 250}, "int8-weight-only"),
        ({"int8_gmacs": 110, "blocks_gmacs": 40}, "float"),
        # 768 multiply-adds in blocks take 7.7 ns per element of the activation
        ({"second_term_ns": 5.0, "float_gmacs": 90}, "int8-weight-only"),
        ({"first_term_ns": 5.0, "float_gmacs": 90}, "int8-weight-only"),
        ({"terms_sum_ns": 5.0, "float_gmacs": 90}, "int8-weight-only"),
    ],
)
def test_the_form_that_takes_least_is_chosen(changed: dict[str, float], form: str) -> None:
    chosen, why = fastest(WIDE, speeds(**changed))
    assert chosen == form
    assert "the kernels of a cpu of the test" in why and f"{form} " in why


def test_the_reason_has_the_times() -> None:
    """589,824 multiply-adds."""
    _, why = fastest(WIDE, speeds(first_term_ns=1.0, second_term_ns=2.0, terms_sum_ns=0.5))
    assert why.endswith("two terms 5.64 µs, int8-weight-only 5.9 µs, float 5.9 µs")


@pytest.mark.parametrize("kind", ["cpu-amx", "cpu-avx512-vnni", "cpu-avx2"])
@pytest.mark.parametrize(("summed", "columns"), [(384, 384), (768, 3072), (3072, 768)])
def test_a_single_row_has_its_weights_alone_in_8_bits(kind: str, summed: int, columns: int) -> None:
    own = kernel_speeds(target(kind))
    assert fastest(Products(1, summed, columns), own)[0] == "int8-weight-only"


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("cpu-amx", "two terms"), ("cpu-avx512-vnni", "int8-weight-only"), ("cpu-avx2", "float"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [None, 16, 128, 1024])
@pytest.mark.parametrize(("summed", "columns"), [(768, 768), (768, 3072), (3072, 768)])
def test_kinds_of_cpu_differ(
    kind: str, form: str, rows: int | None, summed: int, columns: int
) -> None:
    own = kernel_speeds(target(kind))
    found, why = fastest(Products(rows, summed, columns), own)
    assert found == form and f"the kernels of {kind}" in why


def test_without_speeds_weights_alone_have_8_bits() -> None:
    assert fastest(WIDE, None)[0] == "int8-weight-only"
    assert WIDE.slower("two terms", None) == 128 * 768 * 768


@given(
    st.integers(1, 4096), st.integers(1, 4096), st.floats(1, 1000), st.floats(1, 1000),
    st.floats(1, 1000), st.tuples(*[st.floats(0, 10)] * 3),
)  # fmt: skip
def test_no_form_is_faster_than_the_chosen_one(
    summed: int,
    columns: int,
    floats: float,
    codes: float,
    blocks: float,
    ns: tuple[float, float, float],
) -> None:
    """Two terms may be a little faster than another one that is chosen."""
    own = speeds(float_gmacs=floats, int8_gmacs=codes, blocks_gmacs=blocks)
    terms = dict(zip(("first_term_ns", "second_term_ns", "terms_sum_ns"), ns, strict=True))
    own = replace(own, product=replace(own.product, **terms))
    read = Products(None, summed, columns)
    chosen, _ = fastest(read, own)
    taken = read.ns(chosen, own.product)
    for other in ("two terms", "int8-weight-only", "float"):
        slack = MARGIN if other == "two terms" else 1
        assert taken <= slack * read.ns(other, own.product) * (1 + 1e-9)
    expected = 2 * summed * columns / codes + summed * (ns[0] + ns[1]) + columns * ns[2]
    assert read.ns("two terms", own.product) == pytest.approx(expected)
    assert read.slower("two terms", own) >= 0


HEADER = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,T,32] x, float[32,64] w_a, float[16,32] w_b) => (float[N,T,64] y, float[N,T,16] z) {
      [first] y = MatMul (x, w_a)
      [turn] t = Transpose <perm = [1, 0]> (w_b)
      [second] z = MatMul (x, t)
    }"""


@pytest.mark.parametrize(
    ("sizes", "rows"), [({"N": 2, "T": 8}, 16), ({"N": 1, "T": 1}, 1), ({"N": 1}, None), ({}, None)]
)
def test_products_of_one_activation_count_together(sizes: dict[str, int], rows: int | None) -> None:
    model = network(HEADER)
    nodes = [node for node in model.graph if node.op_type == "MatMul"]
    x = nodes[0].inputs[0]
    assert x is not None
    assert products(x, nodes, sizes) == Products(rows, 32, 80)
    x.shape = None
    assert products(x, nodes, sizes) == Products(None, 32, 80)
