"""Peak memory of `optkit package --format compressed-tensors` for a decoder of any size.

    python experiments/large/checkpoint.py SCRATCH                       6.7 B parameters in INT4
    python experiments/large/checkpoint.py SCRATCH --layers 16 --hidden 2048 --bits 8

Writes an artifact as a build does (MatMulNBits with random codes, FP16 scales and norms, under the
names of a Llama), which cannot run, and packages it. Prints a line of JSON; --out adds it to the
rows of a file. Pages that are mapped from files count as memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import onnx_ir as ir
import transformers
from command import measure

from optkit.craft.sources.hugging_face.network_layout import NetworkLayout, network_layout
from optkit.facts.documents.result import RESULT, Result
from optkit.ground import graph
from optkit.ground.artifact import Manifest, write
from optkit.ground.store import digest_json

_BLOCK, _ROWS = 32, 1024
_HALF, _BYTE = ir.DataType.FLOAT16, ir.DataType.UINT8


def config(layers: int, hidden: int) -> transformers.LlamaConfig:
    made = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 43 // 16, num_hidden_layers=layers,
        num_attention_heads=hidden // 128, vocab_size=32_000,
    )  # fmt: skip
    made.architectures = ["LlamaForCausalLM"]
    return made


def constant(name: str, dtype: ir.DataType, *shape: int) -> ir.Value:
    """Random numbers, made when the file is written."""

    def numbers() -> Iterator[tuple[np.ndarray]]:
        generator = np.random.default_rng(list(name.encode()))
        for start in range(0, shape[0], _ROWS):
            size = (min(_ROWS, shape[0] - start), *shape[1:])
            half = dtype == _HALF
            yield (
                generator.random(size, np.float32).astype(np.float16)
                if half
                else generator.integers(0, 256, size, np.uint8),
            )

    (tensor,) = graph.computed([graph.TensorForm(name, dtype, shape)], numbers)
    return ir.val(name, dtype, list(shape), const_value=tensor)


def model(layout: NetworkLayout, bits: int) -> ir.Model:
    """The nodes of all parameters, one after another."""
    x = first = ir.val("input_ids", ir.DataType.INT64, ["batch", "sequence"])
    nodes, constants = [], []

    def add(op: str, name: str, *weights: ir.Value, domain: str = "", **said: int) -> None:
        nonlocal x
        inputs = [*weights, x] if op == "Gather" else [x, *weights]
        nodes.append(ir.node(op, inputs, said, name=f"{name}/{op}", domain=domain))
        x = nodes[-1].outputs[0]
        x.name = f"{name}_out"
        constants.extend(weights)

    for key, shape in layout.embedded.items():
        add("Gather", key.removesuffix(".weight"), constant(key, _HALF, *shape))
    for key, size in layout.norms.items():
        add("Mul", key.removesuffix(".weight"), constant(key, _HALF, size))
    for key, (rows, columns) in layout.linear.items():
        blocks = columns // _BLOCK
        codes = constant(f"{key}.codes", _BYTE, rows, blocks, _BLOCK * bits // 8)
        scales = constant(f"{key}.scales", _HALF, rows, blocks)
        name, sizes = key.removesuffix(".weight"), {"N": rows, "K": columns}
        add("MatMulNBits", name, codes, scales, domain="com.microsoft", bits=bits,
            block_size=_BLOCK, **sizes)  # fmt: skip
    whole = ir.Graph([first], [x], nodes=nodes, initializers=constants,
                     opset_imports={"": 21, "com.microsoft": 1}, name="decoder")  # fmt: skip
    return ir.Model(whole, ir_version=10)


def artifact(scratch: Path, layers: int, hidden: int, bits: int) -> tuple[Path, int, int]:
    """Its folder, and how many parameters and bytes its graph has."""
    staged = scratch / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    config(layers, hidden).save_pretrained(staged)
    layout = network_layout(staged, None)
    graph.save(model(layout, bits), staged / "model.onnx")
    result = Result(schema=RESULT, model="llama", target="l4", precision="int4", status="ok",
                    pending=(), references=(), seconds={}, cache_hits=0)  # fmt: skip
    manifest = Manifest(
        name="llama", target="l4", precision="int4", digest=digest_json(bits), recipe={},
        inputs=(), outputs=(), versions={}, result=result.to_json(),
    )  # fmt: skip
    made = write(scratch, manifest, {file.name: file for file in staged.iterdir()})
    shutil.rmtree(staged)
    count = sum(rows * columns for rows, columns in layout.matrices().values())
    sizes = [file.stat().st_size for file in made.path.iterdir()]
    return made.path, count, sum(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path, help="a folder with room for four times the codes")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--out", type=Path, help="a file for the figures")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    folder, count, size = artifact(given.scratch, given.layers, given.hidden, given.bits)
    words = ("package", str(folder), "--format", "compressed-tensors")
    seconds, peak = measure(words, given.scratch)
    written = sum(file.stat().st_size for file in (given.scratch / "out").rglob("*.safetensors"))
    row = {
        "billions": round(count / 1e9, 2), "bits": given.bits, "graph_gb": round(size / 1e9, 2),
        "written_gb": round(written / 1e9, 2), "seconds": round(seconds, 1),
        "peak_mib": round(peak / 2**20), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(row))
    if given.out is not None:
        rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
        figures = {"date": str(date.today()), "processor": platform.processor() or "x86_64",
                   "cores": os.cpu_count(), "rows": [*rows, row]}  # fmt: skip
        given.out.write_text(f"{json.dumps(figures, indent=1)}\n")


if __name__ == "__main__":
    main()
