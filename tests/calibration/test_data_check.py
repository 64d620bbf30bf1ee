"""The step that checks calibration data against the model's weights, preprocessing and recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.data import spool_writer
from optkit.road.steps import perform
from optkit.road.steps.file_names import ASSETS, GRAPH
from tests.calibration import sets

RANDOM = np.random.default_rng(0)
STEM = (RANDOM.standard_normal((8, 1, 3, 3)) / 3).astype(np.float32)
IMAGE = ("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
CONV = helper.make_node("Conv", ["image", "stem"], ["features"], pads=[1, 1, 1, 1])


def write(
    folder: Path, nodes: list[Any], weights: dict[str, np.ndarray], given: Any = IMAGE
) -> Path:
    """A graph whose last node makes y, as an exported source lies in the store."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in ("features", "biased")
        ],
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(model, folder / GRAPH)
    return folder


def spooled(folder: Path, feed: Feed, *, labelled: bool = False) -> Path:
    infos = tuple(
        TensorInfo(name, array.dtype.name, ("batch", *array.shape[1:]))
        for name, array in feed.items()
    )
    items = (
        (part, np.zeros(len(next(iter(part.values()))), np.int64)) if labelled else part
        for part in sets.split(feed)
    )
    spool_writer.write(items, folder, infos, limit_samples=None, memory_bytes=1 << 24,
                progress=lambda *_: None)  # fmt: skip
    return folder


def check(
    model: Path,
    x: np.ndarray,
    tmp_path: Path,
    other: np.ndarray | None = None,
    name: str = "image",
    span: tuple[float, float] | None = None,
) -> dict[str, Any]:
    inputs = {"graph": model, "samples": spooled(tmp_path / "calibration", {name: x})}
    if other is not None:
        inputs["evaluation"] = spooled(tmp_path / "evaluation", {name: other}, labelled=True)
    shape = ["batch", *x.shape[1:]]
    rows = [{"name": name, "dtype": x.dtype.name, "shape": shape, "range": span}]
    return perform("check_data", inputs, {"inputs": rows}, tmp_path, lambda *_: None)


def kinds(found: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in found["check"]["findings"]]


def convolved(x: np.ndarray) -> np.ndarray:
    """[N, 8, 8, 8]: what the stem makes of images, by definition."""
    padded = np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    found: np.ndarray = np.einsum("nhwij,cij->nchw", windows, STEM[:, 0])
    return found


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A stem and a batch-norm that saw all training digits."""
    seen = convolved(sets.training())
    norm = helper.make_node(
        "BatchNormalization", ["features", "gamma", "beta", "mean", "variance"], ["y"], name="norm"
    )
    weights = {
        "stem": STEM, "gamma": np.ones(8), "beta": np.zeros(8),
        "mean": seen.mean((0, 2, 3)), "variance": seen.var((0, 2, 3)),
    }  # fmt: skip
    numbers = {name: array.astype(np.float32) for name, array in weights.items()}
    return write(tmp_path / "trained", [CONV, norm], numbers)


@pytest.mark.parametrize(
    ("count", "seed"), [(256, 0), (64, 1), (32, 2), (16, 3), (8, 4), (8, 5), (8, 6)]
)
def test_a_batch_norm_knows_data_like_its_training(
    trained: Path, tmp_path: Path, count: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).choice(899, count, replace=False)
    found = check(trained, sets.training()[rows], tmp_path, sets.held_out())
    assert found["check"] == {
        "verdict": "clean", "samples": count, "compared": True, "findings": []
    }  # fmt: skip
    assert found["warnings"] == []


@pytest.mark.parametrize(("factor", "less"), [(255, 0), (1 / 255, 0), (4.4, 0), (1, -8)])
def test_a_batch_norm_tells_the_scale_without_labels_and_evaluation(
    trained: Path, tmp_path: Path, factor: float, less: float
) -> None:
    x = (sets.training()[:64] * factor - less).astype(np.float32)
    found = check(trained, x, tmp_path)
    assert found["check"]["verdict"] == "suspect" and not found["check"]["compared"]
    assert "training statistics" in kinds(found)
    (told,) = (f for f in found["check"]["findings"] if f["kind"] == "training statistics")
    if less == 0:
        assert told["measured"] / told["expected"] == pytest.approx(factor, rel=0.1)
    assert "'norm'" in told["what"] and told["input"] == "image"
    assert any(told["what"] in warning for warning in found["warnings"])


def test_statistics_of_a_network_that_was_never_trained_say_nothing(tmp_path: Path) -> None:
    norm = helper.make_node(
        "BatchNormalization", ["features", "one", "zero", "zero", "one"], ["y"], name="norm"
    )
    weights = {"stem": STEM, "one": np.ones(8, np.float32), "zero": np.zeros(8, np.float32)}
    model = write(tmp_path / "fresh", [CONV, norm], weights)
    assert kinds(check(model, sets.training()[:64] * 8, tmp_path)) == []


def positions(tmp_path: Path, size: float = 0.2, then: str = "Relu") -> Path:
    """A stem to which learned constants are added, without a batch-norm."""
    added = (RANDOM.standard_normal((1, 8, 8, 8)) * size).astype(np.float32)
    nodes = [
        CONV,
        helper.make_node("Add", ["features", "added"], ["biased"]),
        helper.make_node(then, ["biased"], ["y"]),
    ]
    return write(tmp_path / "positions", nodes, {"stem": STEM, "added": added})


@pytest.mark.parametrize(
    ("factor", "kind"), [(255, "raw pixels"), (1 / 255, "dim"), (-1 / 255, "vanishing")]
)
def test_the_first_product_tells_the_scale_where_there_is_no_batch_norm(
    tmp_path: Path, factor: float, kind: str
) -> None:
    model = positions(tmp_path)
    assert kinds(check(model, sets.training()[:64], tmp_path / "sound")) == []
    x = (sets.training()[:64] * factor).astype(np.float32)
    assert kinds(check(model, x, tmp_path)) == [kind]


@pytest.mark.parametrize(("count", "what"), [(1, "only 1 sample"), (3, "only 3 samples")])
def test_few_samples_are_told_as_few_and_nothing_else(
    tmp_path: Path, count: int, what: str
) -> None:
    """One number of the first product per sample: it cannot vary in a single one."""
    conv = helper.make_node("Conv", ["image", "whole"], ["features"])
    nodes = [
        conv,
        helper.make_node("Add", ["features", "added"], ["biased"]),
        helper.make_node("Relu", ["biased"], ["y"]),
    ]
    whole, added = (RANDOM.standard_normal(size).astype(np.float32)
                    for size in ((8, 1, 8, 8), (1, 8, 1, 1)))  # fmt: skip
    model = write(tmp_path / "whole", nodes, {"whole": whole, "added": added})
    (finding,) = check(model, sets.training()[:count], tmp_path)["check"]["findings"]
    assert finding["kind"] == "duplicates" and finding["what"] == what


def test_a_saturated_first_layer_is_reported(tmp_path: Path) -> None:
    model = positions(tmp_path, then="Sigmoid")
    assert kinds(check(model, sets.training()[:64], tmp_path / "sound")) == []
    x = (sets.training()[:64] * 100 - 50).astype(np.float32)
    assert kinds(check(model, x, tmp_path)) == ["saturated"]


def test_a_model_that_scales_by_itself_takes_raw_pixels(tmp_path: Path) -> None:
    scale = helper.make_node("Div", ["image", "white"], ["scaled"])
    conv = helper.make_node("Conv", ["scaled", "stem"], ["features"], pads=[1, 1, 1, 1])
    relu = helper.make_node("Relu", ["features"], ["y"])
    weights = {"stem": STEM, "white": np.array(255, np.float32)}
    model = write(tmp_path / "scaling", [scale, conv, relu], weights)
    x = (sets.training()[:64] * 255).astype(np.float32)
    assert kinds(check(model, x, tmp_path)) == []


def test_a_declared_range_counts_more_than_what_is_usual(tmp_path: Path) -> None:
    model = positions(tmp_path)
    x = (sets.training()[:64] * 255).astype(np.float32)
    assert kinds(check(model, x, tmp_path / "a", span=(0, 255))) == []
    assert kinds(check(model, sets.training()[:64], tmp_path / "b", span=(0, 255))) == ["declared"]
    assert kinds(check(model, x, tmp_path / "c", span=(0, 1))) == ["declared"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda x: (x - sets.MEAN) / sets.STD, []),
        (lambda x: x, ["preprocessing"]),
        (lambda x: x * 255, ["preprocessing", "raw pixels"]),
        (lambda x: x / 255, ["preprocessing", "dim"]),
        (lambda x: x * 2 - 1, ["preprocessing"]),
    ],
)
def test_a_models_own_preprocessing_says_the_range(
    tmp_path: Path, made: Any, expected: list[str]
) -> None:
    stem = (np.random.default_rng(1).standard_normal((8, 3, 3, 3)) / 5).astype(np.float32)
    model = write(
        tmp_path / "hf", [CONV, helper.make_node("Relu", ["features"], ["y"])], {"stem": stem},
        ("image", TensorProto.FLOAT, ["batch", 3, 48, 48]),
    )  # fmt: skip
    (model / ASSETS).mkdir()
    (model / ASSETS / "preprocessor_config.json").write_text(
        json.dumps(
            {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
             "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
        )
    )  # fmt: skip
    x = made(sets.photographs(0)).astype(np.float32)
    assert kinds(check(model, x, tmp_path)) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"image_mean": "a"}', '{"image_std": [0]}', "{}"])
def test_a_preprocessor_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    model = positions(tmp_path)
    (model / ASSETS).mkdir()
    (model / ASSETS / "preprocessor_config.json").write_text(text)
    assert kinds(check(model, sets.training()[:64], tmp_path)) == []


def test_a_token_beyond_the_models_table_is_refused(tmp_path: Path) -> None:
    table = np.zeros((40, 4), np.float32)
    model = write(
        tmp_path / "lm", [helper.make_node("Gather", ["table", "input_ids"], ["y"])],
        {"table": table}, ("input_ids", TensorProto.INT64, ["batch", "sequence"]),
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 40, (16, 8))
    assert kinds(check(model, ids, tmp_path / "sound", name="input_ids")) == []
    ids[11, 3] = 40
    with pytest.raises(
        InputRefused, match="the token is 40, but the model only has tokens 0 to 39"
    ):
        check(model, ids, tmp_path, name="input_ids")
