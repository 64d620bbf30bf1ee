"""What `experiments/speed/kernels.py` measured is what the package keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from optkit.ground.devices import target
from tests.conftest import ROOT
from tests.scripts import script

KERNELS = script("experiments/speed/kernels.py")
FOUND = json.loads((ROOT / "experiments/speed/kernels.json").read_text())
KINDS = {"AMX": "cpu-amx", "VNNI": "cpu-avx512-vnni", "AVX2": "cpu-avx2"}


def test_the_page_is_made_of_the_measurements() -> None:
    assert (ROOT / "experiments/speed/kernels.md").read_text() == KERNELS.page(FOUND)


@pytest.mark.parametrize("name", KINDS)
def test_the_kinds_of_cpu_keep_what_was_measured(name: str) -> None:
    kept = {key: fact.value for key, fact in target(KINDS[name]).kernels.items()}
    assert kept == KERNELS.distilled(FOUND["rows"], name)


def rows(costs: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """Kernels of a CPU whose multiply-adds, elements and runs cost so many nanoseconds."""
    made = []
    for kind, numbers in [
        *((kind, numbers) for kinds in KERNELS.CONV_KINDS.values() for kind in kinds
          for numbers in ("float", "int8")),
        *((kind, numbers) for kinds, numbers in KERNELS.OPERATORS.values() for kind in kinds),
        *(("product", numbers) for _, numbers in KERNELS.PRODUCT_FORMS),
        *((kind, "two terms") for kind in KERNELS.TERM_KINDS),
    ]:  # fmt: skip
        for work, results in ((10**6, 10**4), (10**7, 10**6), (10**5, 10**5)):
            first, second = costs[numbers]
            other = results if kind.endswith(("3×3", "5×5", "pointwise")) else 1
            linear = kind == "product" or numbers == "two terms"
            ns = work * first + second * (0 if linear else other)
            made.append({"kind": kind, "numbers": numbers, "work": work, "results": results,
                         "ns": {"X": {"1": ns}}})  # fmt: skip
    return made


def test_costs_that_are_known_are_found() -> None:
    costs = {"float": (0.01, 0.1), "int8": (0.002, 0.2), "conversion": (0.4, 5000.0),
             "8 bits in blocks of 128, level 4": (0.005, 0.0), "two terms": (0.3, 0.0)}  # fmt: skip
    found = KERNELS.distilled(rows(costs), "X")
    assert found["conv_float_gmacs"] == found["depthwise_conv_float_gmacs"] == 100
    assert found["conv_int8_gmacs"] == found["product_int8_gmacs"] == 500
    assert (found["grouped_conv_float_result_ns"], found["conv_int8_result_ns"]) == (0.1, 0.2)
    assert (found["conversion_element_ns"], found["conversion_operator_us"]) == (0.4, 5)
    assert found["sum_element_ns"] == 0.002
    assert found["product_blocks_gmacs"] == 200
    assert found["product_first_term_ns"] == found["product_terms_sum_ns"] == 0.3
    assert found["product_second_term_ns"] == 0.9  # value, rest and codes


def test_graphs_hold_the_kernels_that_count() -> None:
    """Each case loads, runs, and has the operators whose time counts."""
    every = list(KERNELS.cases())
    kinds = {kind for case in every for kind, _ in case.kernels.values()}
    assert kinds >= {
        "pointwise",
        "depthwise 5×5",
        "grouped 3×3",
        "product",
        "product, 1 row",
        "sum",
        "sum of two products",
    }
    for case in every:
        assert all(case.work[kind] > 0 for kind, _ in case.kernels.values())
        assert all(np.isfinite(array).all() for array in case.feed.values())
