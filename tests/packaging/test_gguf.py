"""GGUF files: the artifact's codes bit by bit, and logits as llama.cpp computes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.errors import UsageError
from optkit.packaging.decoders import Architecture, Codes
from tests.generation import families
from tests.packaging import tiny


def random_codes(seed: int, bits: int, block: int, symmetric: bool) -> Codes:
    rng = np.random.default_rng(seed)
    rows, count = 3, 4
    scales = rng.uniform(0.001, 1, (rows, count)).astype(np.float16).astype(np.float32)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if symmetric else (0, 1 << bits)
    dtype = np.int8 if symmetric else np.uint8
    codes = rng.integers(low, high, (rows, count * block)).astype(dtype)
    zeros = np.zeros((rows, count), dtype)
    if not symmetric:
        zeros = rng.integers(0, high, (rows, count)).astype(dtype)
    return Codes(codes, scales, zeros, block, bits)


@settings(max_examples=30)
@given(st.integers(0, 99), st.sampled_from((32, 64, 128)), st.sampled_from((4, 8)))
def test_symmetric_codes_are_carried_over_exactly(seed: int, block: int, bits: int) -> None:
    gguf = pytest.importorskip("gguf")
    from optkit.packaging.gguf import blocks

    codes = random_codes(seed, bits, block, symmetric=True)
    data, stored = blocks.store(codes)
    assert stored.kind.name == ("Q4_0" if bits == 4 else "Q8_0") and stored.rounding == 0
    np.testing.assert_array_equal(gguf.dequantize(data, stored.kind), codes.numbers())


def test_codes_with_zero_points_are_carried_over() -> None:
    gguf = pytest.importorskip("gguf")
    from optkit.packaging.gguf import blocks

    codes = random_codes(0, 4, 64, symmetric=False)
    data, stored = blocks.store(codes)
    assert stored.kind.name == "Q4_1"
    error = np.abs(gguf.dequantize(data, stored.kind) - codes.numbers()).max()
    assert error <= 15 * codes.scales.max() * 2.0**-11  # the minimum is rounded to FP16


def test_blocks_that_ggml_does_not_have_become_floats() -> None:
    pytest.importorskip("gguf")
    from optkit.packaging.gguf import blocks

    codes = random_codes(0, 4, 16, symmetric=True)
    data, stored = blocks.store(codes)
    assert stored.loosened and stored.kind.name == "F16"
    np.testing.assert_allclose(data, codes.numbers(), rtol=2.0**-11)


def test_scales_are_repeated_for_shorter_blocks() -> None:
    codes = random_codes(0, 4, 64, symmetric=True)
    shorter = codes.in_blocks_of(32)
    assert shorter is not None and shorter.scales.shape == (3, 8)
    np.testing.assert_array_equal(shorter.numbers(), codes.numbers())
    assert codes.in_blocks_of(48) is None


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llama, mistral, qwen2, qwen3"):
        Architecture.of(tiny.artifact(tmp_path))


RUN = """
import json, sys
import llama_cpp, numpy as np
from optkit import api

artifact, out, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
written = api.package(artifact, format="gguf", out=out)
name = next(file["name"] for file in written["files"] if file["name"].endswith(".gguf"))
model = llama_cpp.Llama(f"{written['folder']}/{name}", n_ctx=len(ids), logits_all=True,
                        verbose=False)
model.eval(ids)
np.save(f"{out}/logits.npy", np.array(model.scores[: len(ids)]))
texts = json.loads(sys.argv[4])
tokens = [model.tokenize(text.encode(), add_bos=False) for text in texts]
print(json.dumps({"name": name, "tokens": tokens}))
"""


@pytest.fixture(scope="module")
def llama_python() -> Path:
    """An interpreter of its own with llama.cpp, which pip compiles (about ten minutes, once)."""
    cache = Path(platformdirs.user_cache_dir("optkit", appauthor=False))
    folder = cache / "environments" / "llama-cpp"
    wanted = ("gguf==0.19.0", "llama-cpp-python==0.3.36", "diskcache==5.6.3")
    places = [path for path in sys.path if path.endswith("site-packages")]
    python, record = folder / "bin" / "python", folder / "requirements.json"
    if not record.exists() or json.loads(record.read_text()) != [*wanted, *places]:
        if "OPTKIT_NO_LLAMA" in os.environ:
            pytest.skip("llama.cpp is not compiled here: OPTKIT_NO_LLAMA is set")
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-deps", *wanted]
        subprocess.run(install, check=True)
        inside = next(folder.glob("lib/python*/site-packages"))
        (inside / "zz_outer.pth").write_text("\n".join(places))
        record.write_text(json.dumps([*wanted, *places]))
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "kind", "divergence"),
    # llama.cpp keeps keys and values in FP16; with codes it also rounds activations to 8 bits, in
    # blocks of 32, where ONNX Runtime's blocks are others
    [("fp32", "F32", 1e-5), ("int4", "Q4_0", 5e-3)],
)
def test_llama_cpp_computes_the_same(
    precision: str, kind: str, divergence: float, llama_python: Path, tmp_path: Path
) -> None:
    families.write("llama", tmp_path / "llama")
    built = families.build(tmp_path / "llama", tmp_path, precision)
    ids = np.random.default_rng(0).integers(1, families.VOCABULARY, (1, 40))
    texts = [*families.PROMPTS, "it's 12345  x\t\n\n é日本"]
    arguments = [str(built.path), str(tmp_path), json.dumps(ids[0].tolist()), json.dumps(texts)]
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([str(llama_python), "-c", RUN, *arguments], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": root})  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["name"] == f"llama-{kind}.gguf"
    tokenizer = families.tokenizer(families.PROMPTS)
    assert said["tokens"] == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    with built.session() as session:
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids),
                "position_ids": np.arange(ids.shape[1])[None]}  # fmt: skip
        for info in session.inputs:
            if info.name not in feed:
                _, heads, _, size = info.shape
                feed[info.name] = np.zeros((1, int(heads), 0, int(size)), info.dtype)
        ours = _log_softmax(session.run(feed)["logits"][0])
    theirs = _log_softmax(np.load(tmp_path / "logits.npy"))
    assert (np.exp(ours) * (ours - theirs)).sum(-1).mean() < divergence
    follows = np.arange(39), ids[0, 1:]
    ratio = np.exp(ours[follows].mean() - theirs[follows].mean())  # of the perplexities
    assert abs(ratio - 1) < (1e-3 if precision == "fp32" else 0.03)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    log: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log
