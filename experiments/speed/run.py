"""Is the default INT8 build slower than FP32 on this CPU? Forty models in the shapes that people
deploy: convolutional ones, transformers, and mixtures of both.

    python experiments/speed/run.py SCRATCH [NAME ...]

Run it with an interpreter that has optkit installed (with its `cpu` and `hf` extras) and timm.
Weights and samples are random, because kernels take as long with any numbers. Each model is built
with the default settings from 32 samples, and the figure is that of the build: FP32 and INT8 in
turn, on all cores that the process may use (`taskset -c 1` for one), at batch 1 and 8.

SCRATCH gets samples, the store and artifacts. With names, only these models are built again. Writes
results.json and results.md beside itself, after each model, with the figures of each instruction
set that was run: for AVX2 on a machine with VNNI, run it with the interpreter that
`python -m tests.avx2.environment build/avx2` makes (build/avx2/bin/python).
"""

from __future__ import annotations

import argparse
import json
import os
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

from optkit.ground.devices import cpu, target
from optkit.ground.devices.machine import kernel_kind

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = "import sys; from optkit.cli import main; sys.exit(main())"
SAMPLES, TOKENS = 32, 128
FLOOR = 0.98
_RATIOS = ("min_ms", "p50_ms")
WRITTEN = (
    "`run.py` beside it wrote this; do not edit it. FP32 / INT8 of the least latencies, in "
    "brackets of the medians. The roof (`roof.py`) is the most that INT8 can gain in a model of "
    "large products."
)
IMAGES = {  # timm's name → size of its pictures
    "resnet18": 224, "resnet50": 224, "mobilenetv2_100": 224, "mobilenetv3_large_100": 224,
    "efficientnet_b0": 224, "convnext_tiny": 224, "regnety_008": 224, "densenet121": 224,
    "repvgg_a2": 224, "ghostnet_100": 224, "vit_small_patch16_224": 224,
    "deit_tiny_patch16_224": 224, "swin_tiny_patch4_window7_224": 224, "mobilevit_s": 256,
    "efficientnet_lite0": 224, "mobilenetv4_conv_small": 224, "resnext50_32x4d": 224,
    "seresnet50": 224, "mnasnet_100": 224, "dla34": 224, "res2net50_26w_4s": 224,
    "cspresnet50": 224, "tf_efficientnetv2_b0": 224, "convnextv2_atto": 224, "vgg11": 224,
    "poolformer_s12": 224, "pvt_v2_b0": 224, "levit_128s": 224, "edgenext_small": 256,
    "fastvit_t8": 256,
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
    "albert_base": ("albert", _WIDE | {"intermediate_size": 3072}),
    "mpnet_base": ("mpnet", {}),
    "roformer_base": ("roformer", {}),
    "bert_tiny": ("bert", _SMALL | {"num_hidden_layers": 2}),
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
        "sqnr_db": result["fidelity"] and result["fidelity"]["sqnr_db"],
        "ratios": {str(slow["batch"]): [round(slow[key] / fast[key], 3) for key in _RATIOS]
                   for slow, fast in zip(*sides, strict=True)},
    }  # fmt: skip


def instruction_set() -> str:
    """Of the kernels that this process runs."""
    here = target("cpu")
    kind = kernel_kind(str(here.machine), here.features)
    return {"cpu-avx2": "AVX2", "cpu-amx": "AMX"}.get(kind, "VNNI")


def conditions(threads: int) -> dict[str, Any]:
    import onnxruntime

    limit = roof.measured(threads)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{target('cpu').title}, {threads} {'core' if threads == 1 else 'cores'}",
        "onnxruntime": onnxruntime.__version__,
        "roof": {**asdict(limit), "ratio": limit.ratio},
    }


def page(kept: Mapping[str, Any]) -> str:
    """`kept`: instruction set → its conditions, and its models by name."""
    lines = ["# The default INT8 build beside FP32 on a CPU", ""]
    lines += [WRITTEN, ""]
    for name, run in kept.items():
        limit = run["roof"]
        lines.append(
            f"- {name}: {run['date']}, {run['machine']}, ONNX Runtime {run['onnxruntime']}; roof: "
            f"{limit['fp32']:.0f} GFLOP/s in FP32, {limit['int8']:.0f} Gop/s in integers, "
            f"{limit['ratio']:.1f} times as much; memory {limit['memory']:.0f} GB/s"
        )
    heads = [f"{name}, {what}" for name in kept for what in ("landed", "batch 1", "batch 8")]
    lines += ["", f"| model | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for model in [*IMAGES, *TEXTS]:
        cells = [cell for run in kept.values() for cell in row(run["models"].get(model))]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    lines.append("")
    for name, run in kept.items():
        slower = [model for model, one in run["models"].items()
                  if any(least < FLOOR for least, _ in one.get("ratios", {}).values())]  # fmt: skip
        lines += [f"Slower than {FLOOR} × FP32, {name}: {', '.join(slower) or 'none'}.", ""]
    return "\n".join(lines)


def row(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    if found.get("ratios") is None:
        return [str(found["error"]), "", ""]
    told = [f"{least:.2f} ({median:.2f})" for least, median in found["ratios"].values()]
    return [f"{found['landed']} of {found['planned']}", *told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--name", default=instruction_set(), help="of the columns; default the "
                        "instruction set")  # fmt: skip
    asked = parser.parse_args()
    scratch = asked.scratch.resolve()
    folder, file = project(scratch), HERE / "results.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    here = kept.setdefault(asked.name, {"models": {}})
    here |= conditions(cpu().threads)
    for name in asked.names or [*IMAGES, *TEXTS]:
        here["models"][name] = build(name, folder, scratch)
        print(name, here["models"][name], flush=True)
        file.write_text(json.dumps(kept, indent=1) + "\n")
        (HERE / "results.md").write_text(page(kept))


if __name__ == "__main__":
    main()
