"""What LoRA branches beside the codes of a decoder cost in time and in bytes.

    python experiments/qat/branches.py SCRATCH [--rounds 30] [--threads 1]

The decoder is a Llama with random weights: two layers of 1024, a vocabulary of 1024. It is built
for `cpu` in int4 and in int8-weight-only, and packaged with `--format lora` and adapters of rank 8,
16 and 64 beside all its linear layers but the head. The rows of a build:

    artifact            no branches
    rank 0              the package, without an adapter
    rank 8, 16, 64      the package, with this adapter
    fixed 8, 16, 64     the same graph with the matrices as constants, as a build has the adapters
                        of `qat.prepare_adapters`

Each round runs every row in an order drawn anew, as `optkit generate` does: a prompt of 128 tokens,
and 16 single tokens after 256. Ratios are those of least times; the quartiles are those of the
ratios round by round. Writes branches.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import optkit
from optkit import api, graph
from optkit.artifact import Artifact
from optkit.decoder import Decoder
from optkit.devices.machine import cpu
from optkit.generation.decoding import Ending, decode
from optkit.generation.sampling import greedy
from optkit.runtimes import Recurrent, SessionOptions, backend

PRECISIONS = ("int4", "int8-weight-only")
RANKS = (8, 16, 64)
PROMPT, BEHIND, TOKENS = 128, 256, 16
WIDTH, INNER, VOCABULARY, LAYERS = 1024, 2816, 1024, 2


def decoder_folder(folder: Path) -> Path:
    if not folder.exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER,
            num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=8,
            max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def adapter_folder(model: Path, folder: Path, rank: int) -> Path:
    """An adapter with random matrices, as PEFT saves it."""
    if folder.exists():
        return folder
    rng, held = np.random.default_rng(rank), {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            n, k = weight.shape
            for side, shape in (("A", (rank, k)), ("B", (n, rank))):
                matrix = rng.normal(0, 0.01, shape).astype(np.float32)
                held[f"base_model.model.{name.removesuffix('weight')}lora_{side}.weight"] = matrix
    folder.mkdir(parents=True)
    save_file(held, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def built(model: Path, root: Path, precision: str) -> Artifact:
    return optkit.build(
        str(model), target="cpu", precision=precision, out=root / "artifacts",
        recipe={"name": "decoder",
                "quantization": {"weights": "rtn", "smooth": "off", "equalize": "off"},
                "bench": {"seconds": 0.1, "warmup_seconds": 0.1}},
        workspace=optkit.Workspace(root / "cache", listener=None),
    )  # fmt: skip


def packaged(artifact: Artifact, model: Path, root: Path) -> Artifact:
    adapters = {f"r{rank}": adapter_folder(model, root / f"adapter-{rank}", rank) for rank in RANKS}
    out = root / "packages" / artifact.name
    document = api.package(artifact.path, format="lora", out=out, adapters=adapters)
    return api.load(Path(document["folder"]) / artifact.name, trusted=True)


def fixed(package: Artifact, adapter: Path, file: Path) -> Path:
    """The graph of the package with the matrices of an adapter as constants."""
    model = graph.load(package.model_path)
    matrices = {
        name.removeprefix("base_model.model.").removesuffix(".weight"): np.ascontiguousarray(
            value.T
        )
        for name, value in load_file(adapter / "adapter_model.safetensors").items()
    }
    for name, matrix in matrices.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(matrix, name=name)
        value.shape = ir.Shape(matrix.shape)
        model.graph.inputs.remove(value)
    file.parent.mkdir(parents=True, exist_ok=True)
    graph.save(model, file)
    return file


def size(folder: Path, *names: str) -> int:
    files = [*folder.glob("model.onnx*"), *(folder / "adapters" / name for name in names)]
    return sum(file.stat().st_size for file in files)


def sessions(root: Path, precision: str, threads: int) -> Iterator[tuple[str, Recurrent, int]]:
    """The name of a row, its session, and the bytes of its files."""
    model = decoder_folder(root / "model")
    artifact = built(model, root, precision)
    yield "artifact", artifact.session(threads=threads), size(artifact.path)
    package = packaged(artifact, model, root)
    yield "rank 0", package.session(threads=threads), size(package.path)
    for rank in RANKS:
        session = package.session(threads=threads, adapter=f"r{rank}")
        yield f"rank {rank}", session, size(package.path, f"r{rank}.onnx_adapter")
        folder = root / "fixed" / precision / str(rank)
        file = fixed(package, root / f"adapter-{rank}", folder / "model.onnx")
        session = backend("onnxruntime").session(file, SessionOptions(threads=threads))
        yield f"fixed {rank}", session, size(folder)


def seconds(session: Recurrent, tokens: int, new: int) -> tuple[float, float]:
    """Of a prompt of so many tokens, and of one token after it."""
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    ids = [int(each) for each in np.random.default_rng(0).integers(1, VOCABULARY, tokens)]
    ending = Ending(frozenset(), new, pad=0)
    found = decode(session, decoder, [ids], ending, greedy, lambda row, token: None)
    return found.prefill.seconds, found.decode.seconds / max(found.decode.tokens, 1)


def measured(
    opened: dict[str, tuple[Recurrent, int]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Row → the seconds of each round. The first round warms up."""
    random = np.random.default_rng(0)
    taken: dict[str, dict[str, list[float]]] = {n: {"prompt": [], "token": []} for n in opened}
    for at in range(-1, rounds):
        for name in map(str, random.permutation(list(opened))):
            session, _ = opened[name]
            prompt, _ = seconds(session, PROMPT, 1)
            _, token = seconds(session, BEHIND, TOKENS + 1)
            if at >= 0:
                taken[name]["prompt"].append(prompt)
                taken[name]["token"].append(token)
    return taken


def compared(row: list[float], plain: list[float]) -> dict[str, float]:
    ratios = np.array(row) / np.array(plain)
    low, high = np.percentile(ratios, [25, 75])
    return {"ms": round(1000 * min(row), 3), "ratio": round(min(row) / min(plain), 3),
            "low": round(float(low), 3), "high": round(float(high), 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="default: both")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision in options.precision or PRECISIONS:
        found = sessions(options.scratch, precision, options.threads)
        opened = {name: (session, held) for name, session, held in found}
        taken = measured(opened, options.rounds)
        plain = taken["artifact"]
        for name, (_, held) in opened.items():
            figures = {phase: compared(taken[name][phase], plain[phase]) for phase in plain}
            row = {"precision": precision, "branches": name, "bytes": held, **figures}
            rows.append(row)
            print(json.dumps(row), flush=True)
    result = {
        "date": date.today().isoformat(), "processor": cpu().name,
        "features": list(cpu().features), "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1),
        "rounds": options.rounds, "onnxruntime": version("onnxruntime"), "rows": rows,
    }  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(f"{json.dumps(result, indent=1)}\n")


if __name__ == "__main__":
    main()
