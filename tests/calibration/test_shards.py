"""Calibration in shards, on as many machines: the same bits as in one run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.codec import to_json
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph, runtimes
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.statistics import CHUNK
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH, STATISTICS
from tests.cluster_here import SHARDS, Nodes
from tests.figures import Figures

WEIGHT = ", ".join(f"{value:.3f}" for value in np.random.default_rng(0).standard_normal(128))
MODEL = f"""<ir_version: 10, opset_import: ["" : 21]>
g (float[N,16] x) => (float[N,8] y) <float[16,8] w = {{{WEIGHT}}}> {{
    h = MatMul(x, w)
    y = Relu(h)
}}"""


def quiet(what: str, fraction: float) -> None: ...


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A graph, and 5 chunks and a bit of samples, in the batches that a loader gave."""
    root = tmp_path_factory.mktemp("shards")
    for name in ("graph", "samples"):
        (root / name).mkdir()
    graph.save(ir.from_onnx_text(MODEL), root / "graph" / GRAPH)
    x = np.random.default_rng(1).standard_normal((5 * CHUNK + 7, 16)).astype(np.float32)
    spool_writer.write(
        ({"x": part} for part in np.array_split(x, 11)), root / "samples",
        (TensorInfo("x", "float32", ("N", 16)),),
        limit_samples=None, memory_bytes=1 << 20, progress=quiet,
    )  # fmt: skip
    return {"graph": root / "graph", "samples": root / "samples"}


def params() -> dict[str, Any]:
    rules = to_json(runtimes.backend("onnxruntime").rules(target("cpu"), PRECISIONS["int8"]))
    memory = 2**35  # the limit counts this whole process, other tests' memory included
    return {"batch": 8, "families": [{"int8": rules}], "moments": True, "memory": memory}


def calibrate(inputs: dict[str, Path], out: Path, **more: Any) -> tuple[Any, bytes]:
    out.mkdir()
    meta = perform("calibrate", inputs, {**params(), **more}, out, quiet)
    return meta, written(out)


def written(out: Path) -> bytes:
    file = out / STATISTICS
    return file.read_bytes() if file.exists() else b""


def test_shards_merge_to_the_bits_of_one_run(inputs: dict[str, Path], tmp_path: Path) -> None:
    whole = calibrate(inputs, tmp_path / "whole")
    made = [calibrate(inputs, tmp_path / f"{i}", shard=[i, 2])[0] for i in range(2)]
    assert sum(meta.get("samples", 0) for meta in made) == whole[0]["samples"] == 5 * CHUNK + 7
    assert max(meta.get("samples", 0) for meta in made) < whole[0]["samples"]
    folders = {f"shard-{i}": tmp_path / f"{i}" for i in range(2)}
    assert calibrate({**inputs, **folders}, tmp_path / "merged") == whole


def test_shards_that_nodes_repeat_merge_to_the_bits_of_one_run(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    """More nodes than chunks, too: some of their parts are empty."""
    whole = calibrate(inputs, tmp_path / "whole")
    for turn in range(figures.times(5, 100)):
        count, out = SHARDS[turn % len(SHARDS)], tmp_path / str(turn)
        nodes = Nodes(count, turn, monkeypatch)
        assert (nodes.run("calibrate", inputs, params(), out), written(out)) == whole
        assert len(nodes.notes) == 2 and not nodes.deaths
        assert {path.name for path in tmp_path.iterdir()} == {"whole", out.name}
        shutil.rmtree(out)
    figures.tell(
        "calibration in parts: the bits of one run", 100,
        "1, 2, 3, 4 and 8 parts, answers in shuffled order, the node of one part dies twice",
    )  # fmt: skip
