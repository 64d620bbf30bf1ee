"""One mixture of experts in each form: milliseconds on one thread of this CPU.

    PYTHONPATH=. python experiments/experts/layer.py --out experiments/experts/layer.json

Random weights, SwiGLU. The lookups are what torch's exporter writes. The forms take turns; a time
is the least of all rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
import onnxruntime

from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import to_ort
from optkit.craft.quantization.placement.expert_formats import ExpertFormat
from optkit.craft.quantization.qdq.coded_experts import quantize_experts
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph
from optkit.ground.recipe import Quantization
from tests.mixtures import Form, mixture, weights

EXPERTS, HIDDEN, INNER, TOKENS, ROUNDS = 8, 512, 1024, (1, 8, 64), 12
FORMATS = {
    "4 bits": (NumberFormat("int4", "block", True, block_size=32, signed_scale=True), 4),
    "4 bits in floats": (
        NumberFormat("int4", "block", True, block_size=32, signed_scale=True), 0),
    "8 bits": (NumberFormat("int8", "block", True, block_size=64), 0),
}  # fmt: skip


def forms(folder: Path) -> dict[str, Path]:
    """The graphs by name: lookups of each token's matrices, and the operator."""
    model = mixture(weights(EXPERTS, HIDDEN, INNER), Form())
    fuse(model)
    graphs = {"FP32 lookups": model, "FP32 MoE": model.clone()}
    for name, (fmt, accuracy) in FORMATS.items():
        coded = model.clone()
        names = [str(node.name) for node in coded.graph if graph.stack_of(node) is not None]
        formats = dict.fromkeys(names, ExpertFormat(fmt, accuracy))
        quantize_experts(coded, formats, ExpertRounding(Quantization(weights="rtn")))
        if accuracy or fmt.bits == 8:
            graphs[f"{name} lookups"] = coded
        graphs[f"{name} QMoE"] = coded.clone()
    for name, each in graphs.items():
        if not name.endswith("lookups"):
            assert to_ort(each).counts["experts"] == 1
    return {name: _saved(each, folder / f"{at}.onnx") for at, (name, each) in
            enumerate(graphs.items())}  # fmt: skip


def _saved(model: ir.Model, path: Path) -> Path:
    graph.save(model, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one mixture in each form.")
    parser.add_argument("--out", type=Path, required=True)
    options, settings = parser.parse_args(), onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    rows: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        sessions = {
            name: onnxruntime.InferenceSession(path, settings, ["CPUExecutionProvider"])
            for name, path in forms(Path(folder)).items()
        }
        for count in TOKENS:
            x = np.random.default_rng(0).normal(size=(count, HIDDEN)).astype(np.float32)
            spent: dict[str, list[float]] = {name: [] for name in sessions}
            for _ in range(ROUNDS):
                for name, session in sessions.items():
                    start = time.perf_counter()
                    session.run(None, {"x": x})
                    spent[name].append(time.perf_counter() - start)
            for name, times in spent.items():
                rows.setdefault(name, {})[f"ms_of_{count}"] = 1e3 * min(times[1:])
    found = {"date": str(date.today()), "onnxruntime": onnxruntime.__version__, "threads": 1,
             "experts": EXPERTS, "hidden": HIDDEN, "inner": INNER, "forms": rows}  # fmt: skip
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in rows.items():
        print(name, {key: round(ms, 2) for key, ms in row.items()})


if __name__ == "__main__":
    main()
