"""Other people's graphs: what ONNX Runtime runs is equal in both forms, or refused with a reason.

What was found stands in table.json (`table.py` writes it); every slice of it is judged anew here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy knows these dtypes by name
import numpy as np
import pytest
from onnx import helper, parser

from tests.conformance.backend_cases import WHEELS, download
from tests.conformance.judging import Case, judge
from tests.conformance.random_graphs import operators, random_graph
from tests.conformance.table import JSON, SLICES, cases, judge_all, row
from tests.figures import Figures


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.mark.parametrize("seed", [0, 12332])
def test_random_graphs_are_equal_in_both_forms(seed: int) -> None:
    """A sample of the slow test; in the second one a sum in another order changes a rounding to
    BF16."""
    outcome = judge(random_graph(seed))
    assert outcome.verdict == "equal", outcome


@pytest.mark.slow
def test_more_random_graphs_are_equal_in_both_forms(figures: Figures) -> None:
    """Others than those of the table."""
    times = figures.times(5, 5000)
    for name, outcome in judge_all(random_graph(10_000 + seed) for seed in range(times)):
        assert outcome.verdict == "equal", (name, outcome)
    figures.tell(
        "random valid graphs", times,
        "20 steps of more than 80 operators; fused for TensorRT and for ONNX Runtime: valid, and "
        "with equal outputs (1e-4); 2,000 others are judged in slices by the same test file",
    )  # fmt: skip


def test_random_graphs_hold_many_operators() -> None:
    assert len(operators([random_graph(seed) for seed in range(40)])) >= 80


@pytest.mark.parametrize(
    ("dtype", "verdict"),
    [("float32", "equal"), ("bfloat16", "refused"), ("int4", "refused"), ("float8_e5m2", "refused"),
     ("object", "refused")],
)  # fmt: skip
def test_a_case_of_any_dtype_is_judged(dtype: str, verdict: str) -> None:
    """Refused or not is optkit's; "not run" would be the judge's own limit."""
    given = np.asarray(["1", "0"] if dtype == "object" else [1, 0], dtype)
    kind = helper.np_dtype_to_tensor_dtype(given.dtype)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) '
        "{ y = Cast<to = 1> (x) }"
    )
    model.graph.input[0].type.tensor_type.elem_type = kind
    assert judge(Case(dtype, model, [{"x": given}])).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "number"), [(part, n) for part, count in SLICES.items() for n in range(count)]
)
def test_a_slice_is_as_the_table_says(part: str, number: int, wheels: Path) -> None:
    if part in WHEELS:
        try:
            download(part, wheels)
        except subprocess.CalledProcessError:
            pytest.skip("no network: the wheel with these tests cannot be downloaded")
    found = row(judge_all(cases(part, number, wheels)))
    assert found["wrong"] == found["crashed"] == 0, found["faults"]
    known = json.loads(JSON.read_text())["parts"][part]["slices"][number]
    assert found["refusals"] == known["refusals"]
    assert found["equal"] == known["equal"]
