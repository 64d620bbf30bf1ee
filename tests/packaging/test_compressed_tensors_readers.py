"""transformers computes with the packages of compressed-tensors what the artifacts compute."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer

import optkit
from optkit import Request
from optkit.errors import UsageError
from optkit.ground.artifact import Artifact
from optkit.road.packaging import shards
from optkit.verbs import api
from tests.environments import ROOT, output
from tests.generation import families
from tests.packaging import programs, variants
from tests.packaging.checkpoints import (
    apart,
    codes_in_graph,
    of_session,
    of_transformers,
    tensors,
    unpacked,
)

pytestmark = pytest.mark.slow

ONE_SCHEME = ('quantization.nodes={"*lm_head*": int4}',)
PLAIN = ("quantization.smooth=off", "quantization.bias_correction=false")


@dataclass(frozen=True)
class Case:
    """A model, how it is built, and how far transformers may be from the artifact's session.

    near     the largest root mean square of the difference of the logits, relative to theirs
    formats  those of the package's linear layers
    variant  "zero points" (of codes); "dynamic" (inputs get a scale for each token)
    """

    model: str
    target: str
    precision: str
    near: float
    formats: frozenset[str]
    settings: tuple[str, ...] = ()
    variant: str = ""

    def __str__(self) -> str:
        return " ".join((self.model, self.target, self.precision, self.variant)).strip()


PACKED, INT, FP8, FP4 = (
    frozenset({name})
    for name in ("pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")
)

# For cpu the session computes in FP32, as transformers does, if the kernels of MatMulNBits do not
# round activations (`with_float_products`). For GPUs it computes floats in FP16:
# a rounded input then has another code here and there, which a model with random weights amplifies.
CASES = [
    Case("llama", "cpu", "int4", 1e-5, PACKED),
    Case("llama", "cpu", "int4", 1e-5, PACKED, ONE_SCHEME, "zero points"),
    Case("qwen2", "cpu", "int4", 1e-5, PACKED),
    Case("gemma3", "cpu", "int4", 1e-5, PACKED),
    Case("phi3", "cpu", "int8-weight-only", 1e-5, PACKED),
    Case("bert", "cpu", "int8-weight-only", 1e-5, PACKED),
    Case("bert", "cpu", "int8", 1e-5, INT, PLAIN),
    Case("llama", "l4", "int4", 1e-2, PACKED),
    Case("llama", "l4", "int8", 0.15, INT, PLAIN),
    Case("llama", "l4", "fp8", 0.15, FP8, PLAIN),
    Case("llama", "rtx-5090", "nvfp4", 0.6, FP4, PLAIN),
    Case("llama", "l4", "int8", 0.3, INT, PLAIN, "dynamic"),
    Case("llama", "l4", "fp8", 0.3, FP8, PLAIN, "dynamic"),
]


@dataclass(frozen=True)
class Built:
    """An artifact, its package, and token ids [texts, tokens] to compute."""

    case: Case
    artifact: Artifact
    folder: Path
    ids: np.ndarray


def write_bert(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = hf.BertConfig(vocab_size=320, num_attention_heads=4, initializer_range=0.2, **sizes)
    model = hf.BertForSequenceClassification(config).eval()
    for key, parameter in model.named_parameters():
        if key.endswith((".bias", "LayerNorm.weight")):
            torch.nn.init.normal_(parameter, mean=float("weight" in key), std=0.2)
    model.save_pretrained(folder)
    families.tokenizer(families.PROMPTS).save_pretrained(folder)


def write(model: str, folder: Path) -> None:
    if model == "bert":
        write_bert(folder)
    elif model in (*families.LOCAL, *families.MIXED) and model != "qwen2":
        families.write(model, folder)
    else:
        variants.write(model, folder)


def texts(file: Path) -> str:
    words = " ".join(families.PROMPTS).split()
    draws = np.random.default_rng(0).choice(words, (64, 20))
    file.write_text("\n".join(json.dumps({"text": " ".join(row)}) for row in draws))
    return str(file)


def feeds_of_bert(rng: np.random.Generator, count: int) -> Iterator[dict[str, np.ndarray]]:
    for _ in range(count):
        ids = rng.integers(3, 320, (2, 24))
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids),
               "token_type_ids": np.zeros_like(ids)}  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.model)
    write(case.model, folder / case.model)
    needs_samples = case.precision in ("int8", "fp8", "nvfp4")
    samples, file = None, None
    if needs_samples and case.model == "bert":
        samples = list(feeds_of_bert(np.random.default_rng(1), 16))
    elif needs_samples:
        file = texts(folder / "texts.jsonl")
    artifact = optkit.build(
        Request(str(folder / case.model), overrides=case.settings, calibration=file),
        target=case.target, precision=case.precision, calibration=samples,
        out=folder / "artifacts", workspace=optkit.Workspace(folder / "cache"),
    )  # fmt: skip
    if case.variant == "zero points":
        artifact = variants.with_zero_points(artifact, folder / "artifacts")
    ids = np.random.default_rng(0).integers(3, 320, (2, 40))
    return Built(case, artifact, package(artifact, dynamic=case.variant == "dynamic"), ids)


def package(artifact: Artifact, *, dynamic: bool = False) -> Path:
    made = api.package(
        artifact.path, format="compressed-tensors", out=artifact.path.parent, dynamic=dynamic
    )
    return Path(made["folder"])


def test_codes_and_scales_are_those_of_the_artifact(built: Built) -> None:
    config = json.loads((built.folder / "config.json").read_text())["quantization_config"]
    groups = config["config_groups"].values()
    assert {group["format"] for group in groups} == built.case.formats
    stored = tensors(built.folder)
    compared = 0
    for module, (codes, scales) in codes_in_graph(built.artifact).items():
        parts = [key for key in stored if key.rpartition(".")[0] == module]
        held = {key.rpartition(".")[2]: stored[key] for key in parts}
        np.testing.assert_array_equal(unpacked(held, codes.shape), codes, err_msg=module)
        if scales is not None:
            found = held["weight_scale"].to(torch.float32).numpy()
            np.testing.assert_array_equal(found, scales, err_msg=module)
        compared += 1
    assert compared == sum(key.endswith(".weight_scale") for key in stored) > 8


def test_transformers_computes_what_the_artifact_does(built: Built) -> None:
    zero_points = built.case.variant == "zero points"
    theirs = of_transformers(built.folder, built.ids, dequantize=zero_points)
    near = apart(theirs, of_session(built.artifact, built.ids))
    exact = variants.with_float_products(built.artifact, built.artifact.path.parent)
    nearest = apart(theirs, of_session(exact, built.ids))
    print(f"{built.case}: logits {near:.1e} apart, {nearest:.1e} with products in floats")
    assert nearest < built.case.near and near < max(built.case.near, 0.05)
    assert np.isfinite(theirs).all() and theirs.std() > 0.1


def test_a_cache_in_fp8_has_the_scales_of_the_samples(tmp_path: Path) -> None:
    """Those of transformers on the same texts, whose hooks then round keys and values."""
    write("llama", tmp_path / "llama")
    file = texts(tmp_path / "texts.jsonl")
    artifact = optkit.build(
        Request(str(tmp_path / "llama"), overrides=("quantization.kv_cache=fp8",),
                calibration=file),
        target="l4", precision="int4", out=tmp_path / "artifacts",
        workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    folder = package(artifact)
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    tokenizer = Tokenizer.from_file(str(tmp_path / "llama" / "tokenizer.json"))
    largest = dict.fromkeys((f"{part}_scale" for part in "kv"), np.zeros(2))
    for line in Path(file).read_text().splitlines():
        ids = torch.tensor([tokenizer.encode(json.loads(line)["text"]).ids])
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
        for part in "kv":
            name = "keys" if part == "k" else "values"
            found = [getattr(layer, name).abs().max().item() for layer in cache.layers]
            largest[f"{part}_scale"] = np.maximum(largest[f"{part}_scale"], found)
    stored = tensors(folder)
    for name, reach in largest.items():
        scales = [stored[f"model.layers.{at}.self_attn.{name}"].item() for at in (0, 1)]
        np.testing.assert_allclose(scales, reach / 448, rtol=1e-3)
    ids = np.random.default_rng(0).integers(3, 320, (2, 40))
    rounded = of_transformers(folder, ids)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = None
    (folder / "config.json").write_text(json.dumps(config))
    plain = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        floats = plain.eval()(torch.from_numpy(ids)).logits.numpy()
    assert 1e-3 < apart(rounded, floats) < 0.2


@pytest.mark.parametrize(
    ("precision", "reason"), [("fp32", "fp32 quantizes nothing"), ("nf4", "weight is in nf4")]
)
def test_what_the_format_cannot_hold_is_refused(
    precision: str, reason: str, tmp_path: Path
) -> None:
    variants.write("llama", tmp_path / "llama")
    artifact = optkit.build(
        str(tmp_path / "llama"), target="cpu", precision=precision, out=tmp_path / "artifacts",
        workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    with pytest.raises(UsageError, match=reason) as refused:
        package(artifact)
    assert "int4" in str(refused.value.hint)
    assert not list((tmp_path / "artifacts").glob("*-compressed-tensors"))


def test_a_file_for_each_part_of_a_large_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants.write("llama", tmp_path / "llama")
    artifact = optkit.build(
        Request(str(tmp_path / "llama")), target="cpu", precision="int4",
        out=tmp_path / "artifacts", workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(3, 320, (1, 20))
    whole = of_transformers(package(artifact), ids)
    monkeypatch.setattr(shards, "BYTES", 50_000)
    folder = package(artifact)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "model.safetensors").exists()
    np.testing.assert_array_equal(of_transformers(folder, ids), whole)


@pytest.mark.parametrize(
    ("target", "precision", "settings", "dynamic"),
    [
        ("cpu", "int4", (), False),
        ("cpu", "int8", PLAIN, False),
        ("l4", "int4", (), False),
        ("l4", "int8", PLAIN, False),
        ("l4", "int8", PLAIN, True),
        ("l4", "fp8", PLAIN, False),
        ("l4", "fp8", PLAIN, True),
        ("rtx-5090", "nvfp4", PLAIN, False),
    ],
)
def test_a_trained_model_has_its_perplexity_in_transformers(
    trained: Path, tmp_path: Path, target: str, precision: str, settings: tuple[str, ...],
    dynamic: bool,
) -> None:  # fmt: skip
    artifact = optkit.build(
        Request(recipe=trained / "optkit.yaml", overrides=settings), target=target,
        precision=precision, out=tmp_path, workspace=optkit.Workspace(trained / "cache"),
    )  # fmt: skip
    tokenizer = Tokenizer.from_file(str(trained / "model" / "tokenizer.json"))
    lines = (trained / "data" / "held-out.jsonl").read_text().splitlines()
    stream = [token for line in lines for token in tokenizer.encode(json.loads(line)["text"]).ids]
    ids = np.array(stream[: 8 * 256]).reshape(-1, 256)
    logits = of_session(artifact, ids), of_transformers(package(artifact, dynamic=dynamic), ids)
    first, second = (programs.perplexity(each, ids) for each in logits)
    divergence = programs.divergence(*logits)
    print(f"{target} {precision} {settings} {dynamic}: KL {divergence:.1e}, "
          f"perplexity {first:.2f} and {second:.2f}: {second / first - 1:+.3%}")  # fmt: skip
    assert abs(second / first - 1) < 2e-3 and divergence < 2e-3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's Llama after a few steps of training, with its data and its recipe."""
    example, folder = ROOT / "examples" / "02_tiny_llama", tmp_path_factory.mktemp("trained")
    output([sys.executable, example / "train.py", "--quick", "--out", folder], example)
    shutil.copy(example / "optkit.yaml", folder)
    return folder
