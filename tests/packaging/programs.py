"""Other programs that compute the logits of a packaged decoder, in environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from optkit.ground.artifact import Artifact
from tests.environments import environment

_LLAMA = """
import json, sys
import llama_cpp, numpy as np

package, ids, out, texts = sys.argv[1:]
rows = np.load(ids)
model = llama_cpp.Llama(package, n_ctx=rows.shape[1], logits_all=True, verbose=False)
logits = []
for row in rows:
    model.reset()
    model.eval(row.tolist())
    logits.append(np.array(model.scores[: len(row)]))
np.save(out, np.stack(logits))
print(json.dumps([model.tokenize(text.encode(), add_bos=False) for text in json.loads(texts)]))
"""
_MLX = """
import json, sys
import mlx.core as mx, numpy as np
from mlx_lm.utils import load

package, ids, out, texts = sys.argv[1:]
model, tokenizer = load(package)
logits = [np.array(model(mx.array(row[None])).astype(mx.float32))[0] for row in np.load(ids)]
np.save(out, np.stack(logits))
print(json.dumps([tokenizer.encode(t, add_special_tokens=False) for t in json.loads(texts)]))
"""


@dataclass(frozen=True)
class Said:
    """logits float32 [texts, tokens, vocabulary]; the ids of each text that was tokenized."""

    logits: np.ndarray
    tokens: list[list[int]]


def llama_cpp(file: Path, ids: np.ndarray, texts: Sequence[str]) -> Said:
    return _run(llama_python(), _LLAMA, file, ids, texts)


def mlx_lm(folder: Path, ids: np.ndarray, texts: Sequence[str]) -> Said:
    return _run(mlx_python(), _MLX, folder, ids, texts)


def mlx_python() -> Path:
    """An interpreter with mlx-lm, and so with transformers and sentencepiece."""
    return environment("mlx", "mlx[cpu]==0.32.4", "mlx-lm==0.32.2")


def of_session(artifact: Artifact, ids: np.ndarray) -> np.ndarray:
    """The logits that the artifact's own session computes."""
    logits = []
    with artifact.session() as session:
        for row in ids[:, None]:
            feed = {"input_ids": row, "attention_mask": np.ones_like(row),
                    "position_ids": np.arange(row.shape[1])[None]}  # fmt: skip
            for info in session.inputs:
                if info.name not in feed:
                    _, heads, _, size = info.shape
                    feed[info.name] = np.zeros((1, int(heads), 0, int(size)), info.dtype)
            logits.append(session.run(feed)["logits"][0])
    return np.stack(logits).astype(np.float32)


def divergence(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The mean KL divergence of the next token, in nats."""
    one, other = log_softmax(ours), log_softmax(theirs)
    return float((np.exp(one) * (one - other)).sum(-1).mean())


def perplexity(logits: np.ndarray, ids: np.ndarray) -> float:
    found = np.take_along_axis(log_softmax(logits)[:, :-1], ids[:, 1:, None], -1)
    return float(np.exp(-found.mean()))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    log: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log


def _run(python: Path, code: str, package: Path, ids: np.ndarray, texts: Sequence[str]) -> Said:
    folder = package.parent
    np.save(folder / "ids.npy", ids)
    command = [python, "-c", code, package, folder / "ids.npy", folder / "logits.npy"]
    done = subprocess.run(
        [*map(str, command), json.dumps(list(texts))], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Said(np.load(folder / "logits.npy"), json.loads(done.stdout.splitlines()[-1]))


def llama_python() -> Path:
    """An interpreter with llama.cpp, which pip compiles (about ten minutes, once)."""
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
