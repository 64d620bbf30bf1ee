"""From real files to a score: readers and tasks through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, load, numpy_helper, save
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from optkit.craft.benchmarking import metrics
from optkit.craft.benchmarking import partial_results as resuming
from optkit.ground.data import packing
from optkit.ground.runtimes import backend
from optkit.road.steps import perform

ROOT = Path(__file__).resolve().parents[2]
Optkit = Any

WORDS = ["the", "model", "reads", "a", "text", "and", "predicts", "what", "comes", "next"]


def prose(seed: int, count: int) -> str:
    """Words that follow each other by habit."""
    random = np.random.default_rng(seed)
    place, found = 0, []
    for _ in range(count):
        place = (place + int(random.choice([1, 1, 1, 4]))) % len(WORDS)
        found.append(WORDS[place])
    return " ".join(found)


def onnx(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **weights: Any
) -> None:
    def values(named: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *one) for name, one in named.items()]

    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), stored)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A language model of one layer that has learned bigrams, its tokenizer, and texts."""
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(
        [prose(0, 400)], trainers.WordLevelTrainer(special_tokens=["<unk>", "</s>"])
    )
    (tmp_path / "tokenizer").mkdir()
    made.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    size = made.get_vocab_size()
    ids = made.encode(prose(1, 3000)).ids
    bigrams = np.ones((size, size))
    np.add.at(bigrams, (ids[:-1], ids[1:]), 1)
    head = np.log(bigrams / bigrams.sum(1, keepdims=True)).astype(np.float32)
    shape = ["batch", "sequence"]
    onnx(
        tmp_path / "lm.onnx",
        [
            helper.make_node("Gather", ["table", "input_ids"], ["states"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
            helper.make_node("Mul", ["states", "wide"], ["masked"]),
            helper.make_node("MatMul", ["masked", "head"], ["logits"]),
        ],
        dict.fromkeys(("input_ids", "attention_mask"), (TensorProto.INT64, shape)),
        {"logits": (TensorProto.FLOAT, [*shape, size])},
        table=np.eye(size, dtype=np.float32), head=head, last=np.array([2], np.int64),
    )  # fmt: skip
    lines = [prose(seed, 30) for seed in range(40, 60)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in lines))
    (tmp_path / "held.txt").write_text(prose(2, 300))
    (tmp_path / "optkit.yaml").write_text(LANGUAGE)
    return tmp_path


LANGUAGE = """
name: lm
model: {path: lm.onnx}
axes: {sequence: {min: 1, opt: 16, max: 64}}
calibration:
  source: text
  args: {path: gone.jsonl, length: 16, pack: true, eos: </s>, tokenizer: tokenizer}
eval: {task: perplexity, args: {path: held.txt, length: 16, stride: 4, tokenizer: tokenizer}}
"""
EVAL = ("eval", "--target", "cpu", "--calibration", "corpus.jsonl")


@pytest.mark.slow
def test_perplexity_of_a_language_model(project: Path, cache: Path, optkit_here: Optkit) -> None:
    ran = optkit_here(*EVAL, "--json", cwd=project)
    assert ran.code == 0, ran.err
    found = ran.json["baseline_accuracy"]
    made = Tokenizer.from_file(str(project / "tokenizer" / "tokenizer.json"))
    stream = made.encode((project / "held.txt").read_text()).ids
    rows = []
    with backend("onnxruntime").session(project / "lm.onnx") as session:
        for ids, targets in packing.windows(stream, 16, 4):
            feed = packing.pad([ids], value=1, side="right", length=16)
            outputs = session.run({"input_ids": feed.ids, "attention_mask": feed.mask})
            rows.append(metrics.surprise(outputs["logits"], targets[None]))
    assert found["value"] == pytest.approx(metrics.perplexity(np.concatenate(rows)), rel=1e-5)
    assert found["metric"] == "perplexity" and found["lower_is_better"] is True
    assert 1.5 < found["ci95"][0] < found["value"] < found["ci95"][1] < 6
    again = optkit_here(*EVAL, "--json", cwd=project)
    assert again.json["accuracy"] == ran.json["accuracy"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the model is exported once."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--calibration", "odd.jsonl"], 5, ["odd.jsonl:2", "no JSON object"]),
        (["--calibration", "other.jsonl"], 5, ["other.jsonl:1", "did you mean 'txt'?"]),
        (["--calibration", "gone.jsonl"], 5, ["gone.jsonl", "no such file"]),
        (["--calibration", "corpus.josnl"], 2, ["--calibration corpus.josnl", ".jsonl", ".npz"]),
        (["--calibration", "lm.onnx"], 2, ["unknown kind of data", ".jsonl", "digits"]),
        (["--set", "calibration.args.path=lm.onnx"], 5, ["lm.onnx", ".onnx is not read", ".csv"]),
        (["--eval", "perplexty"], 2, ["--eval perplexty", "did you mean perplexity"]),
        (["--set", "calibration.args.lenght=8"], 5, ["'lenght'", "did you mean 'length'?"]),
        (["--set", "calibration.args.tokenizer=gone"], 5, ["no tokenizer", "gone"]),
        (["--set", "calibration.args.tokenizer=null"], 5, ["no tokenizer", "{tokenizer: FOLDER}"]),
        (["--set", "calibration.args={}"], 5, ["needs the argument 'path'"]),
        (["--set", "eval=null", "--eval-data", "held.txt"], 2, ["--eval-data held.txt", "task"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported(
    project: Path,
    shared: Path,
    optkit_here: Optkit,
    arguments: list[str],
    code: int,
    told: list[str],
) -> None:
    (project / "odd.jsonl").write_text('{"text": "a"}\n["a"]\n')
    (project / "other.jsonl").write_text('{"txt": "a"}\n')
    ran = optkit_here(*EVAL, *arguments, cwd=project, cache=shared)
    assert ran.code == code, ran.err
    ran.told(*told)


def coloured(folder: Path, seed: int, count: int) -> Path:
    """Noise that is mostly red or mostly blue, by class."""
    random = np.random.default_rng(seed)
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 180, (8, 8, 3))
            pixels[..., channel] += 40
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index}.png")
    return folder


RECIPE = """
name: colours
model: {path: colours.onnx}
calibration: {source: images, args: {path: train, mean: 0.5, std: 0.25}}
eval: {task: top1, args: {path: test, mean: 0.5, std: 0.25, k: 1}}
gates: {max_drop: 50%}
"""


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A classifier of colours with its recipe and pictures."""
    folder = tmp_path / "colours"
    coloured(folder / "train", 1, 20)
    coloured(folder / "test", 2, 30)
    (folder / "optkit.yaml").write_text(RECIPE)
    weight = np.zeros((192, 2), np.float32)
    weight[128:, 0] = weight[:64, 1] = 0.1  # "blue" comes first
    onnx(
        folder / "colours.onnx",
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["logits"]),
        ],
        {"image": (TensorProto.FLOAT, ["batch", 3, 8, 8])},
        {"logits": (TensorProto.FLOAT, ["batch", 2])},
        w=weight,
    )  # fmt: skip
    return folder


@pytest.mark.slow
def test_the_manifest_says_which_data_was_used(
    colours: Path, tmp_path: Path, cache: Path, optkit_here: Optkit
) -> None:
    """By a digest that does not depend on where the data lies; a new picture is seen."""

    def data(*arguments: object, cwd: Path) -> dict[str, Any]:
        ran = optkit_here(
            "build", *arguments, "--target", "cpu", "--set", "bench={seconds: 0.1, batches: [1]}",
            "--out", tmp_path / "out", "--json", cwd=cwd,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert ran.json["accuracy"]["metric"] == "top1" and ran.json["accuracy"]["value"] > 0.9
        manifest = json.loads((Path(ran.json["artifact"]) / "manifest.json").read_text())
        found = manifest["data"]
        assert isinstance(found, dict)
        return found

    first = data(cwd=colours)
    assert first["calibration"]["source"] == "content:calibration/images.py:samples"
    assert first["calibration"]["samples"] == 40 and first["evaluation"]["samples"] == 60
    assert first["evaluation"]["args"]["path"] == "test"
    moved = colours.rename(tmp_path / "moved")
    (moved / "train").rename(tmp_path / "elsewhere")
    second = data("moved", "--calibration", "elsewhere", cwd=tmp_path)
    for role, one in first.items():
        assert second[role]["digest"] == one["digest"]
    assert second["calibration"]["args"]["path"] == "elsewhere"
    Image.new("RGB", (8, 8), (255, 0, 0)).save(moved / "test" / "red" / "new.png")
    third = data("moved", "--calibration", "elsewhere", cwd=tmp_path)
    assert third["evaluation"]["samples"] == 61
    assert third["evaluation"]["digest"] != first["evaluation"]["digest"]
    assert third["calibration"] == second["calibration"]


@pytest.mark.slow
def test_a_damaged_picture_is_named(colours: Path, cache: Path, optkit_here: Optkit) -> None:
    damaged = colours / "test" / "red" / "7.png"
    damaged.write_bytes(b"no picture")
    ran = optkit_here("eval", "--target", "cpu", cwd=colours)
    assert ran.code == 5
    ran.told(str(damaged), "not a picture")


@pytest.mark.slow
def test_arrays_are_read_by_their_suffix(colours: Path, cache: Path, optkit_here: Optkit) -> None:
    """Also for a model of a fixed batch: each sample is scored once, and what calibration leaves
    out is told."""
    random = np.random.default_rng(3)
    for name in ("calibration", "held"):
        labels = random.integers(0, 2, 40)
        image = random.normal(0, 1, (40, 3, 8, 8)).astype(np.float32)
        image[np.arange(40), 2 - 2 * labels] += 0.5
        np.savez(colours / f"{name}.npz", image=image, label=labels)
    model = load(colours / "colours.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 16
    save(model, colours / "sixteen.onnx")
    scores = {}
    for name in ("colours", "sixteen"):
        ran = optkit_here(
            "eval", f"{name}.onnx", "--target", "cpu", "--calibration", "calibration.npz",
            "--eval", "top1", "--set", "eval.args.k=1", "--eval-data", "held.npz", "--json",
            cwd=colours,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert ran.json["accuracy"]["value"] > 0.9 and ran.json["accuracy"]["samples"] == 40
        assert ran.json["fidelity"]["samples"] == 40
        scores[name] = ran.json["baseline_accuracy"]
        assert ("8 samples are left out" in ran.err) == (name == "sixteen")
    assert scores["colours"] == scores["sixteen"]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on(
    project: Path, cache: Path, optkit_here: Optkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The step itself, which finds in its checkpoint what an earlier try had scored."""
    assert optkit_here(*EVAL, cwd=project).code == 0
    (task,) = (ROOT / "eval").glob("perplexity.py")
    (samples,) = {  # as they were collected, not sorted by length
        path.parent
        for path in cache.rglob("index.json")
        if '"labelled": true' in path.read_text()
        and json.loads((path.parent / "entry.json").read_text())["step"] == "collect"
    }
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / "model.onnx").write_bytes((project / "lm.onnx").read_bytes())
    params = {"file": "model.onnx", "batch": 4, "evidence": "measured", "path": str(task),
              "metric": "perplexity", "args": {}, "task": "t", "code": "",
              "imports": {}}  # fmt: skip
    inputs = {"graph": graph, "samples": samples}
    monkeypatch.setattr(resuming, "_SECONDS", 0.0)
    monkeypatch.setattr(resuming, "_SHARE", 0)

    def run(told: list[str], stop: int | None, **more: Any) -> dict[str, Any]:
        def progress(what: str, fraction: float) -> None:
            told.append(what)
            if len(told) == stop:
                raise KeyboardInterrupt

        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        out.mkdir()
        return perform("evaluate", inputs, {**params, **more}, out, progress)

    run([], None)  # a process imports what the task imports once, and records it then
    told: list[str] = []
    whole = run(told, None)
    total = len(told)
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        run([], 5, checkpoint=checkpoint)
    rest: list[str] = []
    assert run(rest, None, checkpoint=checkpoint) == whole
    assert len(rest) == total - 5 and rest == [
        one for one in rest if "/s, " in one and " s left" in one
    ]


@pytest.mark.slow
def test_a_hugging_face_folder_brings_its_tokenizer(
    project: Path, cache: Path, optkit_here: Optkit
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    made = Tokenizer.from_file(str(project / "tokenizer" / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>").save_pretrained(project / "hf")
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(project / "hf")
    ran = optkit_here(
        "eval", "hf", "--target", "cpu", "--precision", "int8", "--calibration", "corpus.jsonl",
        "--set", "calibration.args={path: corpus.jsonl, length: 16, pack: true}",
        "--set", "eval={task: perplexity, args: {length: 16, stride: 16}}",
        "--eval-data", "held.txt", "--json", cwd=project,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ids = made.encode((project / "held.txt").read_text()).ids
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ids), 16):
            block = torch.tensor([ids[start : start + 16]])
            if block.shape[1] > 1:
                scored = block.shape[1] - 1
                total += float(model(input_ids=block, labels=block).loss) * scored
                count += scored
    value = ran.json["baseline_accuracy"]["value"]
    assert value == pytest.approx(np.exp(total / count), rel=1e-4)
