"""Samples of a whole encoder-decoder: how each of its graphs gets its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from optkit import Request, Workspace
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import Feed, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.data import parts, spool_writer
from optkit.ground.data.spool import Spool
from optkit.ground.devices import target
from optkit.road import jobs, pipeline
from optkit.road.pipeline import Job, sources
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH
from optkit.verbs import api
from tests.conftest import Optkit

ENCODER = """<ir_version: 10, opset_import: ["" : 21]>
g (int64[B,E] input_ids, int64[B,E] attention_mask) => (float[B,1,E,1] key, float[B,1,E,1] value)
<int64[2] axes = {1, 3}, float two = {2.0}> {
    real = Mul (input_ids, attention_mask)
    numbers = Cast <to = 1> (real)
    key = Unsqueeze (numbers, axes)
    value = Mul (key, two)
}"""


def quiet(what: str, fraction: float) -> None: ...


def infos(batch: int | str = "batch", length: int | str = "encoder_sequence") -> dict[str, Any]:
    """The inputs of the whole model and of its decoder."""
    names = ("input_ids", "attention_mask")
    encoder = tuple(TensorInfo(name, "int64", (batch, length)) for name in names)
    ids = TensorInfo("input_ids", "int64", (batch, "sequence"))
    cache = [
        TensorInfo(f"past_key_values.0.{kind}.{what}", "float32", (batch, 1, size, 1))
        for kind, size in (("encoder", length), ("decoder", "past_sequence"))
        for what in ("key", "value")
    ]
    mask = TensorInfo("encoder_attention_mask", "int64", (batch, length))
    return {"whole": parts.whole(encoder, ids), "encoder": encoder, "decoder": (ids, mask, *cache)}


def save_encoder(folder: Path) -> Path:
    model = ir.from_onnx_text(ENCODER)
    for output in model.graph.outputs:
        output.name = f"present.0.encoder.{output.name}"
    folder.mkdir()
    graph.save(model, folder / GRAPH)
    return folder


def divided(
    tmp_path: Path, items: list[Any], known: dict[str, Any], part: str, memory: int = 1 << 20
) -> Spool:
    given = {"limit_samples": None, "memory_bytes": 1 << 20, "progress": quiet}
    spool_writer.write(items, tmp_path / "whole", known["whole"], **given)  # type: ignore[arg-type]
    inputs = {"samples": tmp_path / "whole"}
    if part == "decoder":
        inputs["encoder"] = save_encoder(tmp_path / "encoder")
    rows = [InputSpec(info).to_json() for info in known[part]]
    params = {"inputs": rows, "optional": ["past_sequence"], "memory": memory}
    perform("divide", inputs, params, tmp_path / part, quiet)
    return Spool(tmp_path / part)


def whole_feed(samples: int, length: int, written: int, seed: int) -> Feed:
    numbers = np.random.default_rng(seed)
    return {
        "input_ids": numbers.integers(3, 96, (samples, length)),
        "attention_mask": numbers.integers(0, 2, (samples, length)),
        "decoder_input_ids": numbers.integers(3, 96, (samples, written)),
    }


@pytest.mark.parametrize("labelled", [False, True])
def test_the_decoder_gets_what_the_encoder_returns(labelled: bool, tmp_path: Path) -> None:
    """Samples of unequal length too, and each with its label."""
    feeds = [whole_feed(3, 5, 4, 0), whole_feed(2, 4, 6, 1), whole_feed(1, 5, 4, 2)]
    tags = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5])]
    items = list(zip(feeds, tags, strict=True)) if labelled else feeds
    found = divided(tmp_path, items, infos(), "decoder")
    assert len(found) == 6 and found.labelled == labelled
    rows = [(feed, row) for feed in feeds for row in range(len(feed["input_ids"]))]
    for number, ((feed, row), (given, label)) in enumerate(zip(rows, found, strict=True)):
        own = {name: array[row : row + 1] for name, array in feed.items()}
        np.testing.assert_array_equal(given["input_ids"], own["decoder_input_ids"])
        np.testing.assert_array_equal(given["encoder_attention_mask"], own["attention_mask"])
        key = (own["input_ids"] * own["attention_mask"])[:, None, :, None].astype(np.float32)
        np.testing.assert_array_equal(given["past_key_values.0.encoder.key"], key)
        np.testing.assert_array_equal(given["past_key_values.0.encoder.value"], 2 * key)
        assert given["past_key_values.0.decoder.key"].shape == (1, 1, 0, 1)
        assert (label == number).all() if labelled else label is None


def test_a_fixed_batch_stays_whole(tmp_path: Path) -> None:
    feeds = [whole_feed(4, 6, 5, seed) for seed in range(2)]
    known = infos(4, 6)
    found = divided(tmp_path, list(feeds), known, "decoder")
    assert [len(feed["input_ids"]) for feed, _ in found] == [4, 4]


def test_the_encoder_gets_its_inputs_alone(tmp_path: Path) -> None:
    feed = whole_feed(3, 5, 4, 0)
    ((given, label),) = divided(tmp_path, [feed], infos(), "encoder")
    assert given.keys() == {"input_ids", "attention_mask"} and label is None
    np.testing.assert_array_equal(given["input_ids"], feed["input_ids"])


def test_memory_holds_one_sample_at_a_time(tmp_path: Path) -> None:
    """Of 32 samples of 100 tokens: one's keys and values take 800 bytes, its ids as much again."""
    feeds = [whole_feed(32, 100, 10, 0)]
    assert len(divided(tmp_path, list(feeds), infos(), "decoder", memory=4000)) == 32
    (tmp_path / "again").mkdir()
    with pytest.raises(InputRefused, match="exceeds the memory budget of 1000"):
        divided(tmp_path / "again", list(feeds), infos(), "decoder", memory=1000)


def test_samples_of_a_part_are_told_from_those_of_the_whole() -> None:
    known = infos()
    both, decoder, encoder = known["whole"], known["decoder"], known["encoder"]
    ids = np.zeros((1, 3), np.int64)
    whole = {"input_ids": ids, "decoder_input_ids": ids}
    own = {"input_ids": ids, "past_key_values.0.encoder.key": ids}
    for item in (whole, (whole, ids)):
        assert parts.is_whole(item, both, decoder) and parts.is_whole(item, both, encoder)
    for item in (own, (own, ids)):
        assert not parts.is_whole(item, both, decoder)
    assert not parts.is_whole({"input_ids": ids}, both, encoder)
    # the encoder's inputs are no sample of the decoder's: decoder_input_ids is what they lack
    assert parts.is_whole({"input_ids": ids}, both, decoder)


WORDS = ["the", "a", "model", "reads", "writes", "some", "text", "token", "graph", "encoder",
         "decoder", "small", "large", "quick"]  # fmt: skip
RECIPE = """\
name: pair
model: {path: t5}
calibration: {source: text, samples: 32, args: {path: learn.jsonl, field: long, target: short}}
eval: {task: task.py}
gates: {max_drop: 20%}
bench: {seconds: 0.1, warmup_seconds: 0, batches: [1]}
"""
TASK = """\
import numpy as np
from pathlib import Path
from optkit.data import text
from optkit.ground.workspace import Workspace

METRIC = "top1"

def samples(path: Path = Path(__file__).with_name("judge.jsonl"), model=None, inputs=None):
    read = {"field": "long", "target": "short", "length": 8, "model": model, "inputs": inputs}
    for feed in text.samples(path, **read):
        yield feed, feed["decoder_input_ids"][:, 1]

def score(outputs, labels):
    return (outputs["logits"][:, 0].argmax(-1) == labels).astype(float)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small T5 of random weights with a tokenizer, pairs of texts, and a recipe."""
    torch.manual_seed(0)
    config = T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                      decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    numbers = np.random.default_rng(0)
    for name in ("learn", "judge"):
        rows = [{"long": " ".join(numbers.choice(WORDS, numbers.integers(5, 30))),
                 "short": " ".join(numbers.choice(WORDS, numbers.integers(3, 9)))}
                for _ in range(32)]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<pad>", "</s>", "<unk>"],
                                        show_progress=False)  # fmt: skip
    made.train_from_iterator(WORDS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(tmp_path / "t5")
    (tmp_path / "optkit.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def crossed(model: Any, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Keys and values of the cross attention, as transformers computes them."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
    with torch.no_grad():
        model(**tensors, past_key_values=cache, use_cache=True)
    return {
        f"past_key_values.{index}.encoder.{what}": getattr(layer, f"{what}s").numpy()
        for index, layer in enumerate(cache.cross_attention_cache.layers)
        for what in ("key", "value")
    }


def test_a_build_without_samples_is_refused_before_work(
    project: Path, optkit_here: Optkit, tmp_path: Path
) -> None:
    (project / "optkit.yaml").unlink()
    done = optkit_here("build", "t5", "--target", "cpu", cwd=project, cache=tmp_path / "store")
    assert done.code == 5
    done.told("int8 needs calibration samples", "--calibration")
    assert "export" not in done.err


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("encoder", ["export", "collect", "divide"]),
        ("decoder", ["export", "export", "collect", "divide"]),
    ],
)
def test_a_rehearsal_knows_what_a_part_needs(part: str, steps: list[str], project: Path) -> None:
    recipe = jobs.resolve(Request(recipe=project / "optkit.yaml"))
    found = api.rehearse(
        recipe=recipe.with_overrides([f"model.part={part}", "eval=null"]),
        target="cpu", precision="int8", workspace=Workspace(project / "store"),
    )  # fmt: skip
    assert [line.step for line in found.steps if line.step in steps] == steps


@pytest.mark.slow
def test_both_parts_are_calibrated_on_pairs_of_texts(
    project: Path, optkit_here: Optkit, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    words = ("--target", "cpu", "--precision", "int8", "--json", "--embed-eval", "64M")
    done = optkit_here("build", *words, cwd=project, cache=store)
    assert done.code == 0, done.err
    built = done.result["parts"]
    for part in built.values():
        landing = part["engine"]["landing"]
        assert landing["planned"] == landing["landed"] > 0
        assert part["fidelity"]["sqnr_db"] > 20
    # the task scores logits, which the decoder returns
    assert built["encoder"]["accuracy"] is None
    assert built["decoder"]["accuracy"]["samples"] == 32

    opened = Artifact.load(project / done.result["artifact"])
    used = [opened.parts[part].manifest.data for part in ("encoder", "decoder")]
    assert used[0] == {  # only the decoder is scored
        role: {key: data[key] for key in data if key not in ("key", "scored_by")}
        for role, data in used[1].items()
    }
    assert {role: data["samples"] for role, data in used[0].items()} == {
        "calibration": 32, "evaluation": 32
    }  # fmt: skip
    files = {name: set(part.manifest.files) for name, part in opened.parts.items()}
    assert "eval.safetensors" in files["decoder"] - files["encoder"]

    _check_samples(project, store)


def _check_samples(project: Path, store: Path) -> None:
    """The samples in the store are what transformers makes of the texts."""
    runner = Workspace(store).runner()
    recipe = jobs.resolve(Request(recipe=project / "optkit.yaml")).with_overrides(
        ["model.part=decoder", "name=decoder"]
    )
    made = pipeline.run(
        Job(recipe, target("cpu"), PRECISIONS["int8"]), runner, pipeline.QUANTIZE[:4]
    )
    assert all(record.hit or record.ran_code for record in runner.records)
    assert [record.label for record in runner.records].count("export encoder") == 1
    model = T5ForConditionalGeneration.from_pretrained(project / "t5").eval()
    spoken = PreTrainedTokenizerFast.from_pretrained(project / "t5")
    rows = [json.loads(line) for line in (project / "learn.jsonl").read_text().splitlines()]
    samples = list(Spool(made.calibration.path))
    assert len(samples) == len(rows) == 32
    for start in range(0, 32, 8):
        texts = [row["long"] for row in rows[start : start + 8]]
        targets = [row["short"] for row in rows[start : start + 8]]
        given = spoken(texts, padding="longest", return_tensors="np")
        labels = spoken(targets, padding="longest", return_tensors="pt")["input_ids"]
        ids = model.prepare_decoder_input_ids_from_labels(labels).numpy()
        source = {name: given[name] for name in ("input_ids", "attention_mask")}
        wanted = {"input_ids": ids, "encoder_attention_mask": given["attention_mask"],
                  **crossed(model, {**source, "decoder_input_ids": ids})}  # fmt: skip
        for name, array in wanted.items():
            found = np.concatenate([feed[name] for feed, _ in samples[start : start + 8]])
            np.testing.assert_allclose(found, array, rtol=0, atol=1e-4 * np.abs(array).max())


@pytest.mark.parametrize(
    ("name", "task", "writes"),
    [
        ("BartForConditionalGeneration", None, True),
        ("MarianMTModel", None, True),
        ("T5WithLMHeadModel", None, True),
        ("VisionEncoderDecoderModel", None, True),
        ("SpeechT5ForSpeechToText", None, True),
        (None, None, True),
        ("BartForSequenceClassification", None, False),
        ("MBartForQuestionAnswering", None, False),
        ("DetrForObjectDetection", None, False),
        ("DetrForSegmentation", None, False),
        ("BartModel", None, False),
        ("BartForConditionalGeneration", "text-classification", False),
        ("BartForConditionalGeneration", "feature-extraction", False),
        ("BartForSequenceClassification", "text2text-generation", True),
    ],
)
def test_an_encoder_decoder_with_another_head_is_one_graph(
    name: str | None, task: str | None, writes: bool
) -> None:
    config = {"architectures": None if name is None else [name]}
    assert sources.writes_text(config, task) == writes
