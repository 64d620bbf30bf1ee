"""Repositories for the Hugging Face hub: names, card, and outputs as optimum computes them."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import platformdirs
import pytest
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import Artifact, Manifest, write
from optkit.ground.devices import target
from optkit.ground.store import digest_json
from optkit.road.packaging import formats
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.generation import families
from tests.packaging import tiny

CONFIG = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
COMPANIONS = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}"}
WEIGHT = np.arange(4096, dtype=np.float32).reshape(4, 1024)


def graph(location: str | None = None) -> bytes:
    """y = x @ w; `location`: the file for the weight."""
    weight = numpy_helper.from_array(WEIGHT, "w")
    if location:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "16384")):
            weight.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1024])
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y],
                             [weight])  # fmt: skip
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(body, opset_imports=opset, ir_version=10).SerializeToString())


def artifact(
    out: Path,
    target: str = "cpu",
    precision: str = "int8",
    content: Mapping[str, Path | bytes] | None = None,
    inputs: tuple[TensorInfo, ...] = (TensorInfo("x", "float32", ("batch", 4)),),
    model: Mapping[str, object] | None = None,
) -> Artifact:
    manifest = Manifest(
        name=f"net-{target}-{precision}", target=target, precision=precision,
        digest=digest_json([target, precision]),
        recipe={"name": "net", "axes": {}, "model": dict(model or {"path": "net"})},
        inputs=inputs, outputs=(TensorInfo("y", "float32", ("batch", 1024)),), versions={},
        result=tiny.result(target, precision).to_json(),
    )  # fmt: skip
    return write(out, manifest, {"model.onnx": graph(), **COMPANIONS} | dict(content or {}))


def package(out: Path, *artifacts: Artifact) -> tuple[Path, tuple[str, ...]]:
    """The folder of the package, and its notes."""
    subject = PackageSubject("net", tuple(map(Variant, artifacts)))
    written = formats.package(subject, "huggingface", out)
    return Path(written.folder), written.notes


def run(file: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_a_repository_has_the_files_of_the_hub(tmp_path: Path) -> None:
    one = artifact(tmp_path, content={"report.md": b"", "genai_config.json": b"{}"},
                   model={"hub": "org/net"})  # fmt: skip
    folder, notes = package(tmp_path / "packages", one)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == {
        "README.md", "config.json", "tokenizer.json", "onnx/model_quantized.onnx",
        "optkit-package.json",
    }  # fmt: skip
    assert (folder / "onnx/model_quantized.onnx").read_bytes() == graph()
    assert (folder / "config.json").read_bytes() == COMPANIONS["config.json"]
    assert [note.split(":")[0] for note in notes] == ["the licence is unknown"]


def test_the_hub_reads_the_card(tmp_path: Path) -> None:
    one = artifact(tmp_path, model={"hub": "org/net"})
    card = ModelCard.load(package(tmp_path / "packages", one)[0] / "README.md")
    assert card.data.to_dict() == {
        "base_model": "org/net", "base_model_relation": "quantized",
        "library_name": "transformers.js", "pipeline_tag": "text-classification",
        "tags": ["onnx", "optkit", "int8"],
    }  # fmt: skip
    for said in ("0.25 ms (band 0.1 to 0.5 ms)", "predicted", "98.33 %", "simulated",
                 "ORTModelForSequenceClassification"):  # fmt: skip
        assert said in card.text, card.text


def test_what_is_unknown_is_not_in_the_card(tmp_path: Path) -> None:
    one = artifact(tmp_path, "l4", "fp8")
    folder, notes = package(tmp_path / "packages", one)
    data = ModelCard.load(folder / "README.md").data.to_dict()
    assert not data.keys() & {"base_model", "base_model_relation", "license"}
    assert (folder / "onnx" / "model_fp8.onnx").is_file()
    assert any("base model is unknown" in note for note in notes)
    assert any("transformers.js has no dtype for model_fp8.onnx" in note for note in notes)


def test_data_files_get_the_names_that_transformers_js_asks_for(tmp_path: Path) -> None:
    content = {"model.onnx": graph("model.onnx.data"), "model.onnx.data": WEIGHT.tobytes()}
    one = artifact(tmp_path, "cpu", "int4", content)
    folder, _ = package(tmp_path / "packages", one)
    file = folder / "onnx" / "model_q4.onnx"
    assert file.with_name("model_q4.onnx_data").read_bytes() == WEIGHT.tobytes()
    config = json.loads((folder / "config.json").read_bytes())
    keys = {"use_external_data_format": {"model_q4.onnx": 1}}
    assert config == CONFIG | {"transformers.js_config": keys}
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(run(file, x), run(one.model_path, x))
    onnx.checker.check_model(file)


def test_a_cache_in_half_precision_is_announced(tmp_path: Path) -> None:
    past = TensorInfo("past_key_values.0.key", "float16", ("batch", 2, "past", 16))
    folder, _ = package(tmp_path / "packages", artifact(tmp_path, "l4", "int4", inputs=(past,)))
    config = json.loads((folder / "config.json").read_bytes())
    assert config["transformers.js_config"] == {"kv_cache_dtype": {"q4f16": "float16"}}
    assert (folder / "onnx" / "model_q4f16.onnx").is_file()


BUILT = st.lists(
    st.tuples(st.sampled_from(("cpu", "l4", "h100")), st.sampled_from(sorted(PRECISIONS))),
    min_size=1, max_size=5, unique=True,
)  # fmt: skip
SUFFIXES = {
    "fp32": "", "fp16": "_fp16", "bf16": "_bf16", "int8": "_quantized", "int8-weight-only": "_int8",
    "fp8": "_fp8", "w4a8": "_q4", "int2": "_int2", "nvfp4": "_nvfp4", "nf4": "_bnb4",
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=30)
@given(BUILT)
def test_one_file_per_precision_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    out = tmp_path_factory.mktemp("fleet")
    built = [artifact(out, *pair) for pair in pairs]
    files = [
        f"model{SUFFIXES.get(precision) if precision in SUFFIXES else half}.onnx"
        for name, precision in pairs
        for half in ["_q4" if target(name).is_cpu else "_q4f16"]
    ]
    if len({*files}) < len(files):
        with pytest.raises(UsageError, match=r"both need the file name onnx/model"):
            package(out / "packages", *built)
        return
    folder, _ = package(out / "packages", *built)
    assert sorted(file.name for file in (folder / "onnx").iterdir()) == sorted(files)
    tags = ModelCard.load(folder / "README.md").data.tags
    assert tags[2:] == sorted({precision for _, precision in pairs})


def test_the_same_artifacts_give_the_same_bytes(tmp_path: Path) -> None:
    built = [artifact(tmp_path, *pair) for pair in (("cpu", "int4"), ("l4", "fp16"))]
    first, _ = package(tmp_path / "one", *built)
    second, _ = package(tmp_path / "two", *reversed(built))
    for name in ("README.md", "onnx/model_q4.onnx", "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_what_a_repository_cannot_hold_is_refused(tmp_path: Path) -> None:
    crossed = TensorInfo("past_key_values.0.encoder.key", "float32", ("batch", 2, "n", 16))
    with pytest.raises(UsageError, match="pass keys and values"):
        package(tmp_path / "packages", artifact(tmp_path / "a", inputs=(crossed,)))
    other = artifact(tmp_path / "b", "l4", "fp16", {"tokenizer.json": b"[]"})
    with pytest.raises(UsageError, match=r"different files tokenizer\.json"):
        package(tmp_path / "packages", artifact(tmp_path / "c"), other)
    broken = artifact(tmp_path / "d", content={"config.json": b"[]"})
    with pytest.raises(InputRefused, match="not a JSON object"):
        package(tmp_path / "packages", broken)
    assert not (tmp_path / "packages").exists()


READ = """
import sys
import numpy as np, torch
from optimum import onnxruntime as optimum

folder, name, loader, feed, out = sys.argv[1:]
model = getattr(optimum, loader).from_pretrained(folder, subfolder="onnx", file_name=name)
inputs = {key: torch.from_numpy(value) for key, value in np.load(feed).items()}
np.save(out, model(**inputs).logits.numpy())
"""


@pytest.fixture(scope="module")
def optimum_python() -> Path:
    """An interpreter of its own with optimum-onnx, which needs an older transformers. It takes
    torch and ONNX Runtime from this environment."""
    cache = Path(platformdirs.user_cache_dir("optkit", appauthor=False))
    folder = cache / "environments" / "optimum-onnx"
    wanted = ("optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6",
              "huggingface_hub==0.36.2", "tokenizers==0.22.2")  # fmt: skip
    places = [path for path in sys.path if path.endswith("site-packages")]
    python, record = folder / "bin" / "python", folder / "requirements.json"
    if not record.exists() or json.loads(record.read_text()) != [*wanted, *places]:
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--no-deps", *wanted], check=True
        )
        inside = next(folder.glob("lib/python*/site-packages"))
        (inside / "zz_outer.pth").write_text("\n".join(places))
        record.write_text(json.dumps([*wanted, *places]))
    return python


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as a Hugging Face folder."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "bert"
    config = hf.BertConfig(vocab_size=320, hidden_size=64, num_hidden_layers=2, num_labels=5,
                           num_attention_heads=4, intermediate_size=128)  # fmt: skip
    hf.BertForSequenceClassification(config).save_pretrained(folder)
    families.tokenizer(families.PROMPTS).save_pretrained(folder)
    return folder


def _reads_the_same(
    python: Path, folder: Path, file: str, loader: str, built: Artifact, feed: dict[str, np.ndarray]
) -> None:
    stored, out = folder.parent / "feed.npz", folder.parent / "out.npy"
    np.savez(stored, **feed)
    done = subprocess.run(
        [str(python), "-c", READ, str(folder), file, loader, str(stored), str(out)],
        capture_output=True, text=True, cwd=folder.parent, env={"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with built.session() as session:
        whole = {i.name: _empty(i, feed) for i in session.inputs if i.name not in feed} | feed
        ours = session.run(whole)["logits"]
    np.testing.assert_array_equal(np.load(out), ours)


def _empty(info: TensorInfo, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the caller of a decoder leaves out: an empty cache, and positions from zero."""
    batch, length = feed["input_ids"].shape
    if info.name == "position_ids":
        return np.tile(np.arange(length), (batch, 1))
    _, heads, _, size = info.shape
    return np.zeros((batch, int(heads), 0, int(size)), info.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_optimum_computes_the_same_bits(
    precision: str, classifier: Path, optimum_python: Path, tmp_path: Path
) -> None:
    ids = np.random.default_rng(0).integers(0, 320, (16, 17))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids)}  # fmt: skip
    built = Artifact.load(_build(classifier, precision, tmp_path, [feed]))
    folder, _ = package(tmp_path / "packages", built)
    file = {"fp32": "model.onnx", "int8": "model_quantized.onnx"}[precision]
    _reads_the_same(optimum_python, folder, file, "ORTModelForSequenceClassification", built, feed)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_optimum_computes_the_same_logits(
    precision: str, optimum_python: Path, tmp_path: Path
) -> None:
    families.write("llama", tmp_path / "llama")
    ids = np.random.default_rng(0).integers(0, 320, (2, 9))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    built = Artifact.load(_build(tmp_path / "llama", precision, tmp_path))
    folder, _ = package(tmp_path / "packages", built)
    file = {"fp32": "model.onnx", "int4": "model_q4.onnx"}[precision]
    _reads_the_same(optimum_python, folder, file, "ORTModelForCausalLM", built, feed)


def _build(model: Path, precision: str, out: Path, samples: Any = None) -> Path:
    workspace = optkit.Workspace(out / "cache")
    return optkit.build(str(model), target="cpu", precision=precision, calibration=samples,
                        out=out, workspace=workspace).path  # fmt: skip
