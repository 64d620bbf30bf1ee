"""Samples with NaN or infinities, and the few samples on which an export is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.data.spool import Spool
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH

X = TensorInfo("x", "float32", ("batch", 4))
ROWS = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)


def quiet(what: str, fraction: float) -> None: ...


def spool(path: Path, feeds: list[Feed], *inputs: TensorInfo) -> Path:
    spool_writer.write(
        feeds, path, inputs, limit_samples=None, memory_bytes=1 << 24, progress=quiet
    )
    return path


def check(tmp_path: Path, body: str, value: float) -> None:
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] x) => (float[N,4] y) {body}'
    (tmp_path / "graph").mkdir()
    graph.save(ir.from_onnx_text(text), tmp_path / "graph" / GRAPH)
    rows = ROWS.copy()
    rows[7, 2] = value
    samples = spool(tmp_path / "samples", [{"x": rows[:5]}, {"x": rows[5:]}], X)
    (tmp_path / "out").mkdir()
    perform("check_finite", {"samples": samples, "graph": tmp_path / "graph"}, {},
            tmp_path / "out", quiet)  # fmt: skip


IMPUTED = "<float z = {0.0}> { gap = IsNaN (x) y = Where (gap, z, x) }"


@pytest.mark.parametrize(
    ("body", "value"), [(IMPUTED, np.nan), ("{ y = Softmax (x) }", -np.inf)], ids=["nan", "-inf"]
)
def test_values_that_the_graph_replaces_or_masks_are_accepted(
    body: str, value: float, tmp_path: Path
) -> None:
    check(tmp_path, body, value)


@pytest.mark.parametrize(
    ("body", "value"),
    [("{ y = Neg (x) }", np.nan), ("{ y = Softmax (x) }", np.inf), (IMPUTED, np.inf)],
)
def test_values_that_reach_an_output_are_refused_with_sample_and_input(
    body: str, value: float, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match="neither is output 'y'") as caught:
        check(tmp_path, body, value)
    assert caught.value.where == "sample 7, input 'x'"


def test_the_smallest_and_the_largest_sample_are_picked(tmp_path: Path) -> None:
    ids = TensorInfo("ids", "int64", ("batch", "t"))
    lengths = [5, 5, 9, 3, 5, 5, 5, 5, 5, 5, 7, 5]
    feeds = [{"ids": np.full((2, n), n)} for n in lengths]
    samples = spool(tmp_path / "samples", feeds, ids)
    (tmp_path / "out").mkdir()
    perform("pick", {"samples": samples}, {"most": 4, "optional": [], "memory": 1 << 24},
            tmp_path / "out", quiet)  # fmt: skip
    picked = [feed["ids"] for feed, _ in Spool(tmp_path / "out")]
    assert len(picked) == 4 and all(len(one) == 1 for one in picked)
    assert {3, 9} < {one.shape[1] for one in picked}
