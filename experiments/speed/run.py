"""Is the default INT8 build slower than FP32 on this CPU? Ten convolutional models and ten
transformers in the shapes that people deploy.

    python experiments/speed/run.py SCRATCH [NAME ...]

Run it with an interpreter that has optkit installed (with its `cpu` and `hf` extras) and timm.
Weights and samples are random, because kernels take as long with any numbers. Each model is built
with the default settings from 32 samples, and the figure is that of the build: FP32 and INT8 in
turn, all cores, at batch 1 and 8.

SCRATCH gets samples, the store and artifacts. With names, only these models are built again. Writes
results.json and results.md beside itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import roof

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = "import sys; from optkit.cli import main; sys.exit(main())"
SAMPLES, TOKENS = 32, 128
FLOOR = 0.98
_RATIOS = ("min_ms", "p50_ms")
IMAGES = {  # timm's name → size of its pictures
    "resnet18": 224, "resnet50": 224, "mobilenetv2_100": 224, "mobilenetv3_large_100": 224,
    "efficientnet_b0": 224, "convnext_tiny": 224, "regnety_008": 224, "densenet121": 224,
    "repvgg_a2": 224, "ghostnet_100": 224,
    "vit_small_patch16_224": 224, "deit_tiny_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224, "mobilevit_s": 256,
}  # fmt: skip
_WIDE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
          "intermediate_size": 1536}  # fmt: skip
TEXTS: Mapping[str, tuple[str, Mapping[str, object]]] = {  # transformers' kind and its sizes
    "bert_base": ("bert", _WIDE),
    "minilm_l6": ("bert", _SMALL),
    "distilbert": ("distilbert", {}),
    "electra_small": ("electra", {}),
    "deberta_v3_small": ("deberta-v2", _WIDE | {"num_hidden_layers": 6}),
    "modernbert_base": ("modernbert", {}),
}
SOURCE = """\
import torch


def pictures(name):
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False).eval()


def texts(kind, sizes):
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(kind, **sizes)).eval()
"""


def project(scratch: Path) -> Path:
    """A file with one factory per model, and the samples of each kind."""
    folder = scratch / "project"
    folder.mkdir(parents=True, exist_ok=True)
    factories = [f"def {name}():\n    return pictures({name!r})\n" for name in IMAGES]
    for name, (kind, sizes) in TEXTS.items():
        factories.append(f"def {name}():\n    return texts({kind!r}, {dict(sizes)!r})\n")
    (folder / "models.py").write_text("\n\n".join([SOURCE, *factories]))
    rng = np.random.default_rng(0)
    for size in sorted(set(IMAGES.values())):
        pictures = rng.standard_normal((SAMPLES, 3, size, size)).astype(np.float32)
        np.savez(folder / f"images{size}.npz", x=pictures)
    ids = rng.integers(5, 30_000, (SAMPLES, TOKENS))
    np.savez(folder / "texts.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    return folder


def build(name: str, folder: Path, scratch: Path) -> dict[str, Any]:
    """One row of the table."""
    data = f"images{IMAGES[name]}.npz" if name in IMAGES else "texts.npz"
    command = [
        sys.executable, "-c", BUILD, "build", f"models.py:{name}", "--calibration", data,
        "-t", "cpu", "-p", "int8", "-o", str(scratch / "artifacts"), "--json", "--quiet",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = os.environ | {"OPTKIT_CACHE": str(scratch / "cache"), "PYTHONPATH": path}
    began = time.monotonic()
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    result = json.loads(ran.stdout) if ran.stdout.strip() else {"error": ran.stderr[-400:]}
    seconds = round(time.monotonic() - began, 1)
    return {"rc": ran.returncode, "seconds": seconds, "error": result.get("error")} | figures(
        result
    )


def figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of the result: landed and planned nodes, and by batch size FP32 / INT8 of the least and the
    median latencies."""
    if not result.get("artifact"):
        return {}
    report = json.loads((Path(result["artifact"]) / "report.json").read_text())
    sides = (report["latencies"]["baseline"], report["latencies"]["engine"])
    landing = result["engine"]["landing"]
    return {
        "landed": landing["landed"], "planned": landing["planned"],
        "ratios": {str(slow["batch"]): [round(slow[key] / fast[key], 3) for key in _RATIOS]
                   for slow, fast in zip(*sides, strict=True)},
    }  # fmt: skip


def machine() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", cpuinfo)
    vnni = "with VNNI" if re.search("avx512_vnni|avx_vnni", cpuinfo) else "without VNNI"
    return f"{name[1] if name else 'unknown'}, {os.cpu_count()} cores, {vnni}"


def page(made: Mapping[str, Any]) -> str:
    written = (
        f"`run.py` beside it wrote this on {made['date']} ({made['machine']}, ONNX Runtime "
        f"{made['onnxruntime']}); do not edit it. FP32 / INT8 of the least latencies, in brackets "
        "of the medians."
    )
    limit = made["roof"]
    roofs = (
        f"The roof of this machine (`roof.py`): {limit['fp32']:.0f} GFLOP/s of products in FP32, "
        f"{limit['int8']:.0f} Gop/s in integers, {limit['ratio']:.1f} times as much; memory "
        f"{limit['memory']:.0f} GB/s."
    )
    lines = ["# The default INT8 build beside FP32 on a CPU", "", written, "", roofs, ""]
    lines += ["| model | landed | at batch 1 | at batch 8 | build, s |", "|---|---|---|---|---|"]
    for name, row in made["models"].items():
        told = [f"{least:.2f} ({median:.2f})" for least, median in row.get("ratios", {}).values()]
        cells = [f"{row['landed']} of {row['planned']}", *told] if told else [row["error"], "", ""]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {row['seconds']:.0f} |")
    slower = [name for name, row in made["models"].items()
              if any(least < FLOOR for least, _ in row.get("ratios", {}).values())]  # fmt: skip
    lines += ["", f"Slower than {FLOOR} × FP32: {', '.join(slower) or 'none'}.", ""]
    return "\n".join(lines)


def main() -> None:
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args()
    scratch = asked.scratch.resolve()
    folder, kept = project(scratch), HERE / "results.json"
    models = json.loads(kept.read_text())["models"] if kept.exists() else {}
    for name in asked.names or [*IMAGES, *TEXTS]:
        models[name] = build(name, folder, scratch)
        print(name, models[name], flush=True)
    limit = roof.measured(os.cpu_count() or 1)
    made = {
        "roof": {**asdict(limit), "ratio": limit.ratio},
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(),
        "onnxruntime": onnxruntime.__version__,
        "models": {name: models[name] for name in [*IMAGES, *TEXTS] if name in models},
    }  # fmt: skip
    kept.write_text(json.dumps(made, indent=1) + "\n")
    (HERE / "results.md").write_text(page(made))


if __name__ == "__main__":
    main()
