"""The matrix of families: every row run anew, into table.json and docs/models.md.

    python tests/matrix/table.py [--processes 2]

A row takes two to three minutes on one core. Needs optkit[cpu,rtx,torch,hf].
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.matrix.columns import COLUMNS, LEAST_SQNR, LIMIT, ROWS, Row

JSON = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
PACKAGES = ("torch", "transformers", "optimum", "onnxscript", "onnxruntime", "tensorrt-rtx")
TITLES = {
    "bert": "BERT", "roberta": "RoBERTa", "distilbert": "DistilBERT", "deberta-v2": "DeBERTa-v2",
    "vit": "ViT", "deit": "DeiT", "swin": "Swin", "resnet": "ResNet", "convnext": "ConvNeXt",
    "mobilenet-v2": "MobileNetV2", "clip": "CLIP, both towers", "t5": "T5", "whisper": "Whisper",
    "gpt2": "GPT-2", "llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral", "phi3": "Phi-3",
    "gemma": "Gemma",
}  # fmt: skip

Found = dict[str, Any]

_HEAD = """# Families of models, and what works for each

`python tests/matrix/table.py` wrote this page on {date}; do not edit it. One small model per family
(two layers of width 32, seeded random weights) goes from a Hugging Face folder through every stage.
{passed} of {cells} cells pass; a test checks every row against this table.

- **Versions:** {versions}.

| column | meaning |
|---|---|
| exports | number of nodes in the exported graph |
| equals torch | largest difference from transformers in float32, as a share of the output's largest value, at the tuned sizes; at most {limit:.0e} |
| axes hold | the same difference at the lower end, at the upper end and in the middle of all dynamic axes |
| fused forms agree | number of nodes: exported → `standard` form → form for ONNX Runtime; the outputs of the forms differ by at most {limit:.0e} at the same three sizes |
| FP16 | the graph in FP16 runs in ONNX Runtime: SQNR against FP32 in dB, at least {fp16:g} |
| INT8 | the graph in INT8 for a CPU runs in ONNX Runtime: SQNR against FP32 in dB, at least {int8:g} |
| TensorRT-RTX | the INT8 graph compiles for compute capability 8.9 (not run): landed / planned products |

The samples are random, and the SQNR is computed on the calibration samples. So the SQNR shows that
nothing is broken; it does not predict the SQNR of a trained model. A decoder is one graph with its
cache, run on a past of 8 tokens; CLIP is one graph of both towers. Decoders are padded on the left,
other models on the right. The batch norms of ResNet and MobileNetV2 are shifted so that most values
pass the ReLU: without this shift, random MobileNetV2 had 31 dB in FP16 and 4 dB in INT8, below both
limits.
"""  # noqa: E501


def page(found: Found) -> str:
    """docs/models.md."""
    cells = [cell for row in found["rows"].values() for cell in row.values()]
    head = _HEAD.format(
        date=found["date"], passed=sum(cell["ok"] for cell in cells), cells=len(cells),
        versions=", ".join(f"{name} {number}" for name, number in found["versions"].items()),
        limit=LIMIT, **LEAST_SQNR,
    )  # fmt: skip
    lines = [f"| family | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    failed = []
    for name, row in found["rows"].items():
        told = []
        for column, cell in row.items():
            if not cell["ok"]:
                failed.append(f"- **{_title(name)}, {column}:** {cell['reason']}")
            told.append(str(cell["value"]) if cell["ok"] else "fails")
        lines.append(f"| {_title(name)} | {' | '.join(told)} |")
    reasons = ["", "## What fails, and why", "", *failed] if failed else []
    return "\n".join([head, *lines, *reasons, ""])


def _title(name: str) -> str:
    family, _, part = name.partition("/")
    return f"{TITLES[family]}, {part}" if part else TITLES[family]


def _row(name: str) -> Found:
    with tempfile.TemporaryDirectory() as scratch:
        cells = Row(name, Path(scratch)).cells()
    print(name, *(f"{column}: {cell.value or cell.reason}" for column, cell in cells.items()),
          sep="\n  ", flush=True)  # fmt: skip
    return {column: cell.to_json() for column, cell in cells.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tests/matrix/table.json, docs/models.md.")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
        rows = dict(zip(ROWS, pool.map(_row, ROWS), strict=True))
    found = {
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in PACKAGES},
        "rows": rows,
    }
    JSON.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
