"""A Hugging Face folder on the command line: a complete build, and the refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from optkit.ground.artifact import Artifact
from optkit.ground.intake import hub
from optkit.ground.runtimes import backend
from tests.conftest import Optkit
from tests.sources.hugging_face import own_code

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
COMPANIONS = {"tokenizer.json": "{}", "tokenizer_config.json": "{}"}

SOURCE = """\
import numpy as np

def samples():
    random = np.random.default_rng(1)
    for _ in range(4):
        yield {"input_ids": random.integers(3, 97, (4, 12))}
"""
RECIPE = """\
name: lm
model: {path: llama}
calibration: {source: tokens.py, samples: 16}
axes:
  sequence: {min: 1, opt: 1, max: 32}
gates: {max_drop: null}
bench: {seconds: 0.1, warmup_seconds: 0, batches: [1]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a decoder, its tokenizer's files, and a recipe beside it."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SMALL)
    hf.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    for name, text in COMPANIONS.items():
        (tmp_path / "llama" / name).write_text(text)
    (tmp_path / "tokens.py").write_text(SOURCE)
    (tmp_path / "optkit.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_decoder_goes_all_the_way_on_the_cpu(
    precision: str, folder: Path, optkit_here: Optkit, store: Path
) -> None:
    done = optkit_here(
        "build", "--target", "cpu", "--precision", precision, "--json", cwd=folder, cache=store
    )
    assert done.code == 0, done.err
    artifact = Artifact.load(folder / done.result["artifact"])
    artifact.verify()
    assert {"config.json", "generation_config.json", *COMPANIONS} <= set(artifact.manifest.files)
    axes = artifact.manifest.recipe["axes"]
    assert axes["sequence"]["max"] == 32
    assert axes["past_sequence"]["min"] == 0
    feed = {
        "input_ids": np.array([[5, 6, 7]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.array([[0, 1, 2]]),
        **{f"past_key_values.{layer}.{what}": np.zeros((1, 2, 0, 8), np.float32)
           for layer in range(2) for what in ("key", "value")},
    }  # fmt: skip
    outputs = artifact.run(feed)
    model = hf.AutoModelForCausalLM.from_pretrained(folder / "llama").eval()
    with torch.no_grad():
        expected = model(torch.tensor([[5, 6, 7]])).logits.numpy()
    noise = np.linalg.norm(outputs["logits"] - expected) / np.linalg.norm(expected)
    assert noise < {"fp32": 1e-5, "int8": 0.1, "int4": 0.5}[precision]
    assert outputs["present.0.key"].shape == (1, 2, 3, 8)


@pytest.mark.slow
def test_a_decoder_compiles_for_a_gpu_that_is_not_here(
    folder: Path, optkit_here: Optkit, store: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    done = optkit_here(
        "build", "--target", "l4", "--precision", "int8", "--json", cwd=folder, cache=store
    )
    assert done.code == 0, done.err
    landing = done.result["engine"]["landing"]
    assert landing["planned"] == landing["landed"] == 15


@pytest.mark.slow
def test_shapes_of_the_models_own_inputs_may_be_given(
    folder: Path, optkit_here: Optkit, store: Path
) -> None:
    (folder / "optkit.yaml").unlink()
    done = optkit_here(
        "export", "llama", "--shapes", "input_ids:2x1", "--out", "fixed", cwd=folder, cache=store
    )
    assert done.code == 0, done.err
    log = json.loads((folder / "fixed" / "details.json").read_text())["log"]
    shapes = {info["name"]: info["shape"] for info in log["inputs"]}
    assert shapes["input_ids"] == [2, 1]
    assert shapes["attention_mask"] == [2, "past_sequence + 1"]
    assert {path.name for path in (folder / "fixed" / "assets").iterdir()} >= set(COMPANIONS)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--set", "model.trust_remote_code=true"], 2, "a recipe may not"),
        (["--adapter", "nothere"], 2, "no such folder"),
        (["--adapter", "llama"], 5, "no adapter_config.json"),
    ],
)
def test_what_is_refused_before_work(
    words: list[str], code: int, told: str, folder: Path, optkit_here: Optkit, cache: Path
) -> None:
    done = optkit_here(
        "build", "llama", "--target", "cpu", "--precision", "fp32", *words, cwd=folder, cache=cache
    )
    assert done.code == code
    assert told in done.err
    assert not [path for path in folder.glob("artifacts/*") if path.is_dir()]


def test_pickles_alone_leave_nothing_behind(folder: Path, optkit_here: Optkit, cache: Path) -> None:
    weights = folder / "llama" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    done = optkit_here("export", "llama", "--out", "graph", cwd=folder, cache=cache)
    assert done.code == 5
    assert "safe_serialization=True" in done.err
    assert not (folder / "graph").exists()


def test_a_folder_that_is_no_model(folder: Path, optkit_here: Optkit, cache: Path) -> None:
    (folder / "empty").mkdir()
    done = optkit_here("export", "empty", "--out", "graph", cwd=folder, cache=cache)
    assert done.code == 2
    assert "holds neither optkit.yaml nor config.json" in done.err


def test_the_extra_that_is_missing_is_named(
    folder: Path, optkit_here: Optkit, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optkit.road.pipeline import refusals

    found = refusals.installed
    monkeypatch.setattr(refusals, "installed", lambda n: None if n == "optimum" else found(n))
    done = optkit_here("export", "llama", "--out", "graph", cwd=folder, cache=cache)
    assert done.code == 4
    assert "optimum is not installed" in done.err
    assert "optkit[hf]" in done.err


def test_a_name_on_the_hub_is_downloaded_as_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder / "llama")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert hub.download("org/name") == folder / "llama"
    assert asked["name"] == "org/name"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".py")) for pattern in asked["allow_patterns"])
    hub.download("org/name", code=True)
    assert "*.py" in asked["allow_patterns"]


def test_without_a_connection_it_says_so(
    folder: Path, optkit_here: Optkit, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("cannot reach the hub\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    done = optkit_here("export", "org/name", "--out", "graph", cwd=folder, cache=cache)
    assert done.code == 5
    assert (
        "org/name: there is no such folder, and the download failed: cannot reach the hub"
        in done.err
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = optkit_here("export", "org/name", "--out", "graph", cwd=folder, cache=cache)
    assert done.code == 4


@pytest.mark.slow
def test_more_tokens_than_learned_positions_are_refused(
    folder: Path, optkit_here: Optkit, store: Path
) -> None:
    config = hf.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    hf.GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    done = optkit_here(
        "export", "gpt2", "--out", "graph", "--set", "axes.sequence={min: 1, opt: 1, max: 40}",
        cwd=folder, cache=store,
    )  # fmt: skip
    assert done.code == 2
    assert "past_sequence + sequence goes up to 72, but the model has only 64 positions" in done.err


@pytest.mark.slow
def test_a_models_own_code_runs_by_the_flag_alone(
    folder: Path, optkit_here: Optkit, cache: Path
) -> None:
    weights = own_code.write(folder / "own")
    trap = folder / "ran"
    own = folder / "own" / "modeling_own.py"
    own.write_text(f"{own.read_text()}\nopen({str(trap)!r}, 'w').close()\n")
    words = ("export", "own", "--out", "graph")
    for more, code, told in (
        ((), 5, "--trust-remote-code"),
        (("--set", "model.trust_remote_code=true"), 2, "a recipe may not"),
    ):
        done = optkit_here(*words, *more, cwd=folder, cache=cache)
        assert done.code == code and told in done.err
        assert not trap.exists() and not (folder / "graph").exists()
    done = optkit_here(*words, "--trust-remote-code", cwd=folder, cache=cache)
    assert done.code == 0, done.err
    assert trap.exists()
    with backend("onnxruntime").session(folder / "graph" / "model.onnx") as session:
        found = session.run({"input_ids": np.array([[3, 4, 5]]),
                             "attention_mask": np.array([[1, 1, 0]])})["logits"]  # fmt: skip
    mean = np.tanh(weights["embeddings.weight"][[3, 4]].numpy().mean(0))
    wanted = weights["classifier.weight"].numpy() @ mean + weights["classifier.bias"].numpy()
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4)
