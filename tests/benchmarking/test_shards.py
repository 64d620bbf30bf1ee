"""Evaluation in parts, on as many machines: the same bits as in one run, for every task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from optkit.facts.errors import InputRefused, IntegrityError
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph, places, shipped
from optkit.ground.data import spool, spool_writer
from optkit.ground.data.frames import Boxes, Frame, written
from optkit.road.steps import perform
from optkit.road.steps.bodies.batches import CountedBatches
from optkit.road.steps.file_names import GRAPH, SCORES
from tests.cluster_here import SHARDS, Nodes
from tests.figures import Figures

SAMPLES, BATCH = 46, 4
WRITTEN = [5, 1, 8, 3, 7, 6, 2, 9, 4, 1]  # samples per batch, as a source may give them
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,%s] x) => (float[N,%s] y) <float[%d] w = {%s}> { y = Add(x, w) }"""

# task → shape of a sample's output, its labels (of how many classes, or two texts of a pair)
CLASSES, TOKENS, VECTORS = (5,), (3, 6), (4,)
ANCHORS, PIXELS = (6, 40), (3, 4, 5)  # as YOLO returns them, of two classes; logits of three
POSES, ORIENTED = (8, 40), (7, 40)  # of one class with one keypoint; of two classes with an angle
TASKS: dict[str, tuple[tuple[int, ...], str]] = {
    "detection": (ANCHORS, "boxes"),
    "digits_top1": (CLASSES, "class"),
    "exact_match": (TOKENS, "tokens"),
    "f1": (CLASSES, "class"),
    "obb": (ORIENTED, "oriented"),
    "perplexity": (TOKENS, "tokens"),
    "pose": (POSES, "poses"),
    "retrieval": (VECTORS, "text"),
    "retrieval_agreement": (VECTORS, "text"),
    "segmentation": (PIXELS, "masks"),
    "similarity": (VECTORS, "text"),
    "similarity_agreement": (VECTORS, "text"),
    "token_f1": (TOKENS, "tokens"),
    "top1": (CLASSES, "class"),
}
POINTS = {
    "boxes": None, "poses": np.asarray([[[0.0, 0, 2]]]),
    "oriented": np.asarray([[[-1.0, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]]]),
}  # fmt: skip
NEEDS_A_DECODER = {"greedy_agreement"}


def quiet(what: str, fraction: float) -> None: ...


def labels(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if kind == "text":
        spans = np.tile([0.0, 1.0], (SAMPLES, 1))
        return np.concatenate([rng.uniform(0, 5, (SAMPLES, 1)), spans], axis=1)
    if kind in POINTS:  # one box of 2×2 pixels about the origin
        frame, box = Frame(8, 8, 1, 1, 0, 0, 8, 8), np.asarray([[-1.0, -1.0, 1.0, 1.0]])
        area, crowd = np.asarray([4.0]), np.zeros(1, bool)
        classes = rng.integers(0, 1 if kind == "poses" else 2, (SAMPLES, 1))
        boxes = (Boxes(row, box, area, crowd, POINTS[kind]) for row in classes)
        return np.stack([written(frame, one, 2) for one in boxes])
    if kind == "masks":
        return rng.integers(0, shape[0], (SAMPLES, *shape[1:]))
    size = (SAMPLES,) if kind == "class" else (SAMPLES, shape[0])
    return rng.integers(0, shape[-1], size)


def batches(*arrays: np.ndarray) -> Iterator[Any]:
    """Of samples in groups of four."""
    cuts, groups = np.cumsum(WRITTEN)[:-1], np.arange(SAMPLES) // 4
    for x, tags, clips in zip(*(np.split(a, cuts) for a in (*arrays, groups)), strict=True):
        yield {"x": x}, tags, None, clips


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Path]]:
    """Two graphs and the samples of a kind, as the steps find them."""
    root = tmp_path_factory.mktemp("shards")

    def make(shape: tuple[int, ...], kind: str) -> dict[str, Path]:
        folder, rng = root / kind, np.random.default_rng(3)
        paths = {name: folder / name for name in ("graph", "reference", "samples")}
        if not folder.exists():
            for path in paths.values():
                path.mkdir(parents=True)
            axes, width = ",".join(map(str, shape)), shape[-1]
            for name, scale in (("graph", 1.0), ("reference", 0.0)):
                weight = ", ".join(f"{scale * v:.3f}" for v in rng.standard_normal(width))
                text = MODEL % (axes, axes, width, weight)
                graph.save(ir.from_onnx_text(text), paths[name] / GRAPH)
            x = rng.standard_normal((SAMPLES, *shape)).astype(np.float32)
            spool_writer.write(
                batches(x, labels(kind, shape, rng)), paths["samples"],
                (TensorInfo("x", "float32", ("N", *shape)),),
                limit_samples=None, memory_bytes=1 << 20, progress=quiet,
            )  # fmt: skip
        return paths

    return make


SETTINGS: dict[str, Any] = {
    "file": GRAPH, "batch": BATCH, "evidence": "simulated", "metric": "m", "args": {}, "task": "t",
    "code": "", "imports": {},
}  # fmt: skip


def run(step: str, inputs: dict[str, Path], out: Path, **params: Any) -> tuple[Any, bytes]:
    out.mkdir()
    return made(perform(step, inputs, {**SETTINGS, **params}, out, quiet), out)


def made(meta: Mapping[str, object], out: Path) -> tuple[Any, bytes]:
    """What a step told and wrote, without what its task's code read: each run has its own."""
    file = out / SCORES
    told = {name: value for name, value in meta.items() if name != "reads"}
    return told, file.read_bytes() if file.exists() else b""


def in_parts(
    step: str, count: int, inputs: dict[str, Path], root: Path, **params: Any
) -> tuple[Any, bytes]:
    root.mkdir()
    parts = {f"shard-{i}": root / f"{i}" for i in range(count)}
    for i, out in enumerate(parts.values()):
        assert run(step, inputs, out, shard=[i, count], **params)[0] == {}
    return run(step, {**inputs, **parts}, root / "merged", **params)


def test_every_task_is_tried() -> None:
    names = {path.stem for path in (shipped.root() / "eval").glob("*.py")}
    assert names == {*TASKS} | NEEDS_A_DECODER


@pytest.mark.parametrize("name", TASKS)
def test_parts_score_to_the_bits_of_one_run(
    name: str, prepared: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    inputs = prepared(*TASKS[name])
    params = {"path": str(places.find_task(name, Path()).path)}
    baseline = {"samples": inputs["samples"], "graph": inputs["reference"]}
    whole = run("evaluate", baseline, tmp_path / "whole", **params)
    assert in_parts("evaluate", 3, baseline, tmp_path / "parts", **params) == whole
    if name.endswith("agreement"):
        inputs = {
            "samples": inputs["samples"],
            "graph": inputs["graph"],
            "baseline_score": tmp_path / "whole",
        }
        whole = run("evaluate", inputs, tmp_path / "candidate", **params)
        assert in_parts("evaluate", 3, inputs, tmp_path / "again", **params) == whole
    score = whole[0]["score"]
    assert score["samples"] in (SAMPLES, SAMPLES // 2)
    assert score["basis"] == {"method": "bootstrap", "units": 12, "kind": "groups"}
    groups = load_file(tmp_path / "whole" / SCORES)["groups"]
    assert (len(groups), len(set(groups.tolist()))) == (score["samples"], 12)
    assert score["ci95"][0] < score["value"] < score["ci95"][1] or score["value"] in (0, 1)


def test_slices_are_scored_only_for_a_gate(
    prepared: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    found = prepared(*TASKS["detection"])
    inputs = {name: found[name] for name in ("graph", "samples")}
    params = {"path": str(places.find_task("detection", Path()).path), "args": {"overlap": "50"}}
    meta, _ = run("evaluate", inputs, tmp_path / "plain", **params)
    whole = run("evaluate", inputs, tmp_path / "sliced", sliced=True, **params)
    assert whole[0] == meta
    assert in_parts("evaluate", 3, inputs, tmp_path / "parts", sliced=True, **params) == whole
    plain, sliced = (load_file(tmp_path / name / SCORES) for name in ("plain", "sliced"))
    names = {"slice/class 0", "slice/class 1", "slice/small boxes"}
    assert sliced.keys() - plain.keys() == names
    assert all(len(sliced[name]) == 1 + len(sliced["replicates"]) for name in names)
    # every box is small
    assert sliced["slice/small boxes"][0] == pytest.approx(meta["score"]["value"])


@pytest.mark.parametrize("count", [2, 7, 30])
def test_parts_compare_to_the_bits_of_one_run(
    count: int, prepared: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    """Also where there are more parts than batches."""
    inputs = prepared(*TASKS["f1"])
    whole = run("compare", inputs, tmp_path / "whole")
    assert whole[0]["fidelity"]["ci95"] is not None
    assert in_parts("compare", count, inputs, tmp_path / "parts") == whole


def test_parts_that_nodes_repeat_score_to_the_bits_of_one_run(
    prepared: Callable[..., dict[str, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    figures: Figures,
) -> None:
    """The score, and how far the outputs are from the reference's."""
    inputs = prepared(*TASKS["f1"])
    graph = {name: inputs[name] for name in ("graph", "samples")}
    task = {"path": str(places.find_task("f1", Path()).path)}
    steps: dict[str, Any] = {"evaluate": (graph, task), "compare": (inputs, {})}
    whole = {step: run(step, given, tmp_path / step, **more)
             for step, (given, more) in steps.items()}  # fmt: skip
    for turn in range(figures.times(5, 100)):
        for step, (given, more) in steps.items():
            out = tmp_path / f"{turn}-{step}"
            nodes = Nodes(SHARDS[turn % len(SHARDS)], turn, monkeypatch)
            meta = nodes.run(step, given, {**SETTINGS, **more}, out)
            assert made(meta, out) == whole[step]
            assert len(nodes.notes) == 2 and not nodes.deaths
    figures.tell(
        "evaluation in parts: the bits of one run", 200,
        "a score and a comparison in 1, 2, 3, 4 and 8 parts, answers in shuffled order, the node "
        "of one part dies twice",
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 7, 30])
@pytest.mark.parametrize("batch", [BATCH, None])
def test_parts_have_the_batches_of_one_run(
    count: int, batch: int | None, prepared: Callable[..., dict[str, Path]]
) -> None:
    path = prepared(*TASKS["f1"])["samples"]
    told: list[float] = []

    def heard(what: str, fraction: float) -> None:
        told.append(fraction)

    whole = [feed["x"] for feed, _ in spool.Spool(path).batches(batch)]
    made: list[np.ndarray] = []
    for index in range(count):
        part = CountedBatches(path, batch, heard, (index, count))
        assert part.first == sum(map(len, made))
        made += [feed["x"] for feed, _ in part.rest(0)]
    assert [len(x) for x in made] == [len(x) for x in whole]
    assert np.array_equal(np.concatenate(made), np.concatenate(whole))
    assert len(told) == len(whole) and max(told) == 1.0


def test_a_part_tells_the_number_of_a_bad_sample(
    prepared: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text(
        "import numpy as np\n"
        "def score(outputs, labels):\n"
        "    return np.where(labels == labels.max(), np.nan, 1.0)\n"
    )
    inputs, params = dict(prepared(*TASKS["f1"])), {"path": str(tmp_path / "task.py")}
    del inputs["reference"]
    tags = np.concatenate([tags for _, tags in spool.Spool(inputs["samples"]).batches(BATCH)])
    with pytest.raises(InputRefused) as caught:
        run("evaluate", inputs, tmp_path / "part", shard=[2, 3], **params)
    assert "sample" in str(caught.value.where)
    number = int(str(caught.value.where).split()[-1])
    assert number >= SAMPLES * 2 // 3
    start = CountedBatches(inputs["samples"], BATCH, quiet, (2, 3)).first
    first = tags[start : start + BATCH]
    assert number == start + int(np.argmax(first == first.max()))


def test_a_part_that_is_lost_is_reported(
    prepared: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    inputs = {**prepared(*TASKS["f1"]), "shard-0": tmp_path}
    with pytest.raises(IntegrityError):
        run("compare", inputs, tmp_path / "merged")
