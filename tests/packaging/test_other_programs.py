"""llama.cpp and mlx-lm compute what the artifact does: its weights, calibration and adapter."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import optkit
from optkit import Request
from optkit.ground.artifact import Artifact
from optkit.verbs import api
from tests.environments import ROOT, output
from tests.generation import families
from tests.packaging import programs, variants

pytestmark = pytest.mark.slow

TEXTS = (*families.PROMPTS, "it's 12345  x\t\n\n é日本")


@dataclass(frozen=True)
class Case:
    """A model, how it is built, and how far the programs may be from the artifact's session.

    kind      the type in the name of the GGUF file
    variant   "adapter" (LoRA), "sentencepiece" (the tokenizer), "zero points" (of codes)
    gguf, mlx the largest mean KL divergence of the next token
    note      what the notes of both packages say
    """

    model: str
    precision: str
    kind: str
    gguf: float
    mlx: float
    target: str = "cpu"
    variant: str = ""
    note: str | None = None

    def __str__(self) -> str:
        return " ".join((self.model, self.target, self.precision, self.kind, self.variant)).strip()


# With floats both compute what ONNX Runtime does; llama.cpp keeps keys and values in FP16. With
# codes llama.cpp and ONNX Runtime's kernel for the CPU round activations to 8 bits, each in its own
# blocks, and MLX does not. For l4 the session computes in FP32, and MLX in the artifact's FP16.
CASES = [
    Case("llama", "fp32", "F32", 1e-5, 1e-9, variant="sentencepiece"),
    Case("llama", "int4", "Q4_0", 5e-3, 5e-3, variant="adapter"),
    Case("llama", "int4", "Q4_0", 5e-3, 1e-3, target="l4"),
    Case("llama", "int4", "Q4_1", 5e-3, 5e-3, variant="zero points"),
    Case("llama-linear", "fp32", "F32", 1e-5, 1e-9),
    Case("llama-llama3", "fp32", "F32", 1e-5, 1e-9),
    Case("mistral-window", "fp32", "F32", 1e-5, 1e-9, note="limited to 64 positions"),
    Case("qwen2", "int8-weight-only", "Q8_0", 5e-3, 5e-3),
    Case("qwen3", "int4", "Q4_0", 5e-3, 5e-3),
]


@dataclass(frozen=True)
class Built:
    """An artifact; token ids [texts, tokens] to compute; and what TEXTS are as tokens."""

    case: Case
    artifact: Artifact
    ids: np.ndarray
    tokens: list[list[int]]


@pytest.fixture(scope="module", params=CASES, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.model)
    model, adapter = folder / case.model, None
    tokenizer = variants.write(case.model, model)
    tokens = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    if case.variant == "adapter":
        adapter = str(folder / "adapter")
        variants.write_adapter(model, folder / "adapter")
    if case.variant == "sentencepiece":
        tokens = variants.write_sentencepiece(programs.mlx_python(), model, TEXTS)
    artifact = optkit.build(
        Request(str(model), adapter=adapter), target=case.target, precision=case.precision,
        out=folder / "artifacts", workspace=optkit.Workspace(folder / "cache"),
    )  # fmt: skip
    if case.variant == "zero points":
        artifact = variants.with_zero_points(artifact, folder / "artifacts")
    ids = np.random.default_rng(0).integers(3, variants.VOCABULARY, (1, 40))
    return Built(case, artifact, ids, tokens)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The example's Llama in int4, calibrated; trained for a few steps if it is not there. The
    text is held out."""
    example, folder = ROOT / "examples" / "02_tiny_llama", tmp_path_factory.mktemp("trained")
    if (example / "model").is_dir():
        for name in ("model", "data"):
            shutil.copytree(example / name, folder / name)
    else:
        output([sys.executable, example / "train.py", "--quick", "--out", folder], example)
    shutil.copy(example / "optkit.yaml", folder)
    artifact = optkit.build(
        recipe=folder / "optkit.yaml", target="cpu", precision="int4", out=folder / "artifacts",
        workspace=optkit.Workspace(folder / "cache"),
    )  # fmt: skip
    tokenizer = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    lines = (folder / "data" / "held-out.jsonl").read_text().splitlines()
    stream = [token for line in lines for token in tokenizer.encode(json.loads(line)["text"]).ids]
    ids = np.array(stream[: min(16, len(stream) // 256) * 256]).reshape(-1, 256)
    tokens = [tokenizer.encode(text).ids for text in TEXTS]
    return Built(Case("tiny-llama", "int4", "Q4_0", 5e-3, 5e-3), artifact, ids, tokens)


def test_mlx_computes_what_the_artifact_does(built: Built) -> None:
    compare(built, programs.mlx_lm(package(built, "mlx"), built.ids, TEXTS), built.case.mlx)


def test_llama_cpp_computes_what_the_artifact_does(built: Built) -> None:
    (file,) = package(built, "gguf").glob("*.gguf")
    assert file.stem == f"{built.case.model}-{built.case.kind}"
    compare(built, programs.llama_cpp(file, built.ids, TEXTS), built.case.gguf)


def test_a_trained_model_has_its_perplexity_in_mlx(trained: Built) -> None:
    compare(trained, programs.mlx_lm(package(trained, "mlx"), trained.ids, TEXTS), 5e-3)


def test_a_trained_model_has_its_perplexity_in_llama_cpp(trained: Built) -> None:
    (file,) = package(trained, "gguf").glob("*.gguf")
    compare(trained, programs.llama_cpp(file, trained.ids, TEXTS), 5e-3)


def package(built: Built, form: str) -> Path:
    written = api.package(built.artifact.path, format=form, out=built.artifact.path.parent)
    assert built.case.note is None or any(built.case.note in each for each in written["notes"])
    return Path(written["folder"])


def compare(built: Built, said: programs.Said, divergence: float) -> None:
    """Prints the figures of docs/studies/packages.md."""
    ours = programs.of_session(built.artifact, built.ids)
    first, second = (programs.perplexity(logits, built.ids) for logits in (ours, said.logits))
    found = programs.divergence(ours, said.logits)
    print(f"KL {found:.1e}, perplexity {first:.2f} and {second:.2f}: {second / first - 1:+.2%}")
    assert said.tokens == built.tokens
    assert found < divergence
    exact = built.artifact.manifest.precision == "fp32"
    assert abs(second / first - 1) < (1e-3 if exact else 0.03)
