"""Samples at one point of the declared sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.facts.tensors import AxisRange, Feed, InputSpec
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.data.spool import Spool
from optkit.road.steps import perform
from optkit.road.steps.resize import Resize, ResizedSamples
from tests.networks import network

POOL = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch,t,4] x, float[4,8] w) => (float[batch,8] y) {
      axis = Constant <value = int64[1] {1}> ()
      a = MatMul (x, w)
      y = ReduceSum <keepdims = 0> (a, axis)
    }"""
NODES = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch,nodes,4] x, int64[batch,1] edge) => (float[batch,nodes,4] y) {
      y = Identity (x)
    }"""


def resize(
    folder: Path, model: str, feeds: list[Feed], axes: dict[str, AxisRange], at: str
) -> tuple[dict[str, Any], list[Feed]]:
    made = network(model)
    infos = list(graph.inputs(made))
    (folder / "graph").mkdir()
    graph.save(made, folder / "graph" / "model.onnx")
    spool_writer.write(
        feeds, folder / "samples", infos, limit_samples=None, memory_bytes=1 << 28, progress=silent
    )
    step = Resize(
        samples=ResizedSamples(),
        graph=ResizedSamples(),
        specs=tuple(map(InputSpec, infos)),
        axes=axes,
        at=at,
        whole=False,
        optional=(),
        memory=1 << 28,  # type: ignore[arg-type]
    )
    inputs = {"samples": folder / "samples", "graph": folder / "graph"}
    (folder / "out").mkdir()
    meta = perform("resize", inputs, {**step.params, "memory": 1 << 28}, folder / "out", silent)
    made_feeds = [feed for feed, _ in Spool(folder / "out")] if meta.get("info") else []
    return dict(meta), made_feeds


def silent(what: str, fraction: float) -> None: ...


def bags(length: int, count: int = 3) -> list[Feed]:
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal((2, length, 4)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize(
    ("at", "size"), [("least", 8), ("shorter", 16), ("longer", 91), ("largest", 256)]
)
def test_samples_get_the_declared_sizes(tmp_path: Path, at: str, size: int) -> None:
    feeds = bags(32)
    found, made = resize(tmp_path, POOL, feeds, {"t": AxisRange(8, 32, 256)}, at)
    assert found["sizes"] == {"t": size} and found["reached"] == {"t": [32, 32]}
    assert not found.get("told") and not found.get("warnings")
    assert len(made) == 6 and {feed["x"].shape for feed in made} == {(1, size, 4)}
    given = np.concatenate([feed["x"] for feed in feeds])
    assert np.isin(made[0]["x"], given).all()
    if at == "largest":  # as many different values as the samples have together
        assert np.isin(given, made[0]["x"]).all()


def test_where_values_are_used_again_it_is_told_for_how_many_samples_they_are(
    tmp_path: Path,
) -> None:
    found, _ = resize(tmp_path, POOL, bags(32), {"t": AxisRange(8, 32, 64)}, "largest")
    assert found["distinct"] == 3  # 6 samples of 32 are 3 of 64


def test_short_samples_are_cut_at_many_places(tmp_path: Path) -> None:
    """All begin with the same row, as all texts do."""
    feeds = bags(32, 8)
    for feed in feeds:
        feed["x"][:, 0] = 1
    _, made = resize(tmp_path, POOL, feeds, {"t": AxisRange(1, 32, 32)}, "least")
    rows = np.stack([feed["x"].ravel() for feed in made])
    same = (rows == 1).all(axis=1)
    assert same.sum() == len(rows) / 2
    assert len(np.unique(rows[~same], axis=0)) == len(rows) / 2
    given = np.concatenate([feed["x"][:, :17] for feed in feeds])
    assert np.isin(rows, given).all()  # the second half is for comparisons


def test_an_end_near_the_samples_has_nothing_between(tmp_path: Path) -> None:
    found, made = resize(tmp_path, POOL, bags(32), {"t": AxisRange(9, 32, 256)}, "shorter")
    assert not made and not found.get("warnings")


def test_what_cannot_be_reached_has_a_point_between(tmp_path: Path) -> None:
    """Between the samples' size and the largest one that is tried."""
    axes = {"t": AxisRange(8, 32, 1 << 32)}
    for folder in ("end", "between"):
        (tmp_path / folder).mkdir()
    largest, _ = resize(tmp_path / "end", POOL, bags(32, 1), axes, "largest")
    found, made = resize(tmp_path / "between", POOL, bags(32, 1), axes, "longer")
    assert made and not found.get("warnings") and not found.get("told")
    assert found["sizes"]["t"] == round((32 * largest["sizes"]["t"]) ** 0.5)


def test_samples_that_all_have_this_size_are_not_written(tmp_path: Path) -> None:
    found, made = resize(tmp_path, POOL, bags(8), {"t": AxisRange(8, 32, 256)}, "least")
    assert not made and found["sizes"] == {"t": 8}


def test_a_size_that_takes_too_long_is_halved_and_told(tmp_path: Path) -> None:
    huge = 1 << 32
    found, made = resize(tmp_path, POOL, bags(32, 1), {"t": AxisRange(8, 32, huge)}, "largest")
    size = found["sizes"]["t"]
    assert 32 < size < huge and huge % size == 0
    assert {feed["x"].shape[1] for feed in made} == {size}
    [warning] = found["warnings"]
    assert f"declared 8 to {huge}" in warning and f"only {size} is tried" in warning


def test_an_axis_that_cannot_change_is_told(tmp_path: Path) -> None:
    feeds = [{"x": np.zeros((1, 9, 4), np.float32), "edge": np.array([[8]])}]
    found, made = resize(tmp_path, NODES, feeds, {"nodes": AxisRange(2, 9, 9)}, "least")
    assert not made
    [warning] = found["warnings"]
    assert warning.startswith("axis nodes is declared 2 to 9, the samples have 9: ")
    assert "'edge'" in warning
