"""An artifact that is built with pending work, and then finished: the same build, measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.ground import shipped
from optkit.ground.artifact import SAMPLES, Artifact, write
from tests.report.test_build_result import check

Optkit = Callable[..., Any]


@pytest.fixture(scope="session")
def deferred(
    small: Path, store: Path, optkit_apart: Optkit, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The artifact of `small` for cpu, whose engine was left to be made."""
    out = tmp_path_factory.mktemp("deferred")
    done = optkit_apart("build", "--target", "cpu", "--defer", "--json", "--out", out,
                        cwd=small, cache=store)  # fmt: skip
    assert done.code == 0, done.err
    return out / "small-cpu-int8"


@pytest.fixture
def unfinished(deferred: Path, tmp_path: Path) -> Path:
    return shutil.copytree(deferred, tmp_path / "artifacts" / deferred.name)


def test_a_deferred_build_compiles_and_times_nothing(deferred: Path) -> None:
    result = Artifact.load(deferred).result
    check("result", result)
    assert (result["status"], result["engine"]["evidence"]) == ("pending", "pending")
    assert (result["latency"]["evidence"], result["accuracy"]["evidence"]) == (
        "predicted", "simulated",
    )  # fmt: skip
    assert [row["backend"] for row in result["pending"]] == ["onnxruntime"]


@pytest.mark.slow
def test_what_is_finished_is_what_a_build_here_gives(
    optkit_here: Optkit, unfinished: Path, small: Path, store: Path
) -> None:
    argv = ["--eval", small / "task.py", "--json"]
    done = optkit_here("finish", unfinished, *argv, cache=store)
    assert done.code == 0, done.err
    found, direct = Artifact.load(unfinished), Artifact.load(small / "artifacts/small-cpu-int8")
    found.verify()
    assert found.digest == direct.digest and found.manifest.engine == direct.manifest.engine
    assert done.result == found.result
    check("result", found.result)
    report = json.loads((unfinished / "report.json").read_text())
    check("report", report)
    wanted = json.loads((direct.path / "report.json").read_text())
    for key in ("landing", "layers", "quantization", "fusion"):
        assert report[key] == wanted[key], key
    assert (found.result["status"], found.result["pending"]) == ("ok", [])
    for key in ("engine", "latency", "accuracy", "speedup", "drop"):
        assert found.result[key]["evidence"] == "measured", key
    for key in ("accuracy", "drop", "gate"):
        assert found.result[key] == direct.result[key], key
    # it compiles the artifact's graph, which is longer by what that says of itself
    engines = [one.result["engine"] for one in (found, direct)]
    assert [{**one, "bytes": 0} for one in engines] == [{**engines[0], "bytes": 0}] * 2
    assert 0 <= engines[0]["bytes"] - engines[1]["bytes"] < 512
    assert report["provenance"]["finished"]["machine"]["name"] == "cpu"
    assert report["provenance"]["finished"]["machine"] == wanted["provenance"]["machine"]
    assert "machine" not in report["provenance"]  # the host that built it measured nothing
    check("report", wanted)
    assert found.result["references"] == []  # they have not seen the samples of this task
    assert SAMPLES not in found.manifest.files
    assert found.manifest.data["evaluation"]["source"] == "given:task.py"
    manifest = (unfinished / "manifest.json").read_bytes()
    assert optkit_here("finish", unfinished, cache=store).code == 0
    assert (unfinished / "manifest.json").read_bytes() == manifest


def test_a_task_that_is_not_optkits_own_has_to_be_given(
    optkit_here: Optkit, unfinished: Path, store: Path
) -> None:
    before = (unfinished / "manifest.json").read_bytes()
    done = optkit_here("finish", unfinished, cache=store).told("--eval FILE.py", "task.py")
    assert done.code == 5
    assert (unfinished / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("named", ["{}/evil.py", "../../../../../..{}/evil.py", "eval/../evil.py"])
def test_code_that_an_artifact_names_by_a_path_is_never_run(
    named: str, optkit_here: Optkit, unfinished: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit(99)\n")
    before = Artifact.load(unfinished).manifest
    source = f"content:{named}".format(tmp_path)
    data = {"evaluation": {**before.data["evaluation"], "source": source}}
    files = {name: (unfinished / name).read_bytes() for name in before.files}
    write(unfinished.parent, replace(before, data=data), files)
    assert optkit_here("finish", unfinished, cache=store).told("does not contain").code == 5


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits with their classes, in a file of the user."""
    digits = np.load(shipped.root() / "calibration/digits.npz")
    images = (digits["images"][1::2, None] / 16).astype(np.float32)
    file = tmp_path_factory.mktemp("held") / "held.npz"
    np.savez(file, image=images, label=digits["labels"][1::2].astype(np.int64))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the artifact", "in the store", "with optkit", "given"])
def test_the_samples_of_the_build_are_scored(
    where: str, optkit_here: Optkit, tmp_path: Path, store: Path, held: Path
) -> None:
    argv = ["--target", "cpu", "--precision", "fp32", "--defer", "--out", tmp_path]
    given = ["--eval", "top1", "--eval-data", held]
    argv += ["--embed-eval", "64M"] if where == "in the artifact" else []
    argv += [] if where == "with optkit" else given
    assert optkit_here("build", *argv, cache=store).code == 0
    path = tmp_path / "digits-vit-cpu-fp32"
    before = Artifact.load(path)
    assert (SAMPLES in before.manifest.files) == (where == "in the artifact")
    # a build that is its own baseline has one graph
    assert before.manifest.own_baseline
    assert not any(name.startswith("baseline/") for name in before.manifest.files)
    other = tmp_path / "other"
    if where == "given":
        done = optkit_here("finish", path, cache=other)
        assert done.told("--eval top1 --eval-data PATH", "nor in the store").code == 5
    words = given if where == "given" else []
    cache = store if where == "in the store" else other
    assert optkit_here("finish", path, *words, cache=cache).code == 0
    after = Artifact.load(path)
    after.verify()
    assert after.result["accuracy"] == {**before.result["accuracy"], "evidence": "measured"}
    assert after.result["speedup"]["value"] == 1
    assert (SAMPLES in after.manifest.files) == (where == "in the artifact")
    assert after.manifest.own_baseline and after.digest == before.digest


def test_args_need_a_task(optkit_here: Optkit, unfinished: Path, store: Path, held: Path) -> None:
    done = optkit_here("finish", unfinished, "--eval-data", held, cache=store).told("--eval")
    assert done.code == 2
    named = ["--eval", "top1", "--set", "gates.max_drop=9%"]
    assert optkit_here("finish", unfinished, *named, cache=store).told("eval.args.KEY").code == 2


def test_another_device_is_refused(
    optkit_here: Optkit, small: Path, tmp_path: Path, store: Path
) -> None:
    argv = ["--target", "l4", "--precision", "fp16", "--defer", "--out", tmp_path]
    assert optkit_here("build", *argv, cwd=small, cache=store).code == 0
    path = tmp_path / "small-l4-fp16"
    pending = [row["backend"] for row in Artifact.load(path).result["pending"]]
    assert pending[:2] == ["tensorrt-rtx", "tensorrt"]
    before = (path / "manifest.json").read_bytes()
    done = optkit_here("finish", path, "--json", cache=store).told("NVIDIA L4", "no GPU")
    assert done.code == 4
    (path / "model.onnx").write_bytes(b"changed")
    assert optkit_here("finish", path, cache=store).told("model.onnx was changed").code == 7
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_a_model_of_two_graphs_is_finished_whole(
    optkit_here: Optkit, tmp_path: Path, store: Path
) -> None:
    import transformers

    config = transformers.T5Config(
        vocab_size=96, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    argv = ["--target", "cpu", "--precision", "fp32", "--out", tmp_path / "out"]
    done = optkit_here("build", tmp_path / "t5", *argv, "--defer", "--json", cache=store)
    assert done.code == 0, done.err
    path = tmp_path / "out/t5-cpu-fp32"
    assert done.result["pending"] == [{"backend": "onnxruntime", "finish": f"optkit finish {path}"}]
    digest = Artifact.load(path).digest
    part = optkit_here("finish", path / "encoder", cache=store).told("part of an artifact")
    assert part.code == 2
    assert optkit_here("finish", path, cache=store).code == 0
    found = Artifact.load(path)
    found.verify()
    assert (found.digest, found.result["status"]) == (digest, "ok")
    for one in found.parts.values():
        one.verify()
        assert one.result["latency"]["evidence"] == "measured"
