"""Convolutions with 4-bit weights and 8-bit activations (W4A8): what PTQ without training keeps.

    python experiments/fourbit/convolutions.py      writes convolutions.json beside itself

The small MobileNetV2 of experiments/qat/distilled.py, trained here on half of scikit-learn's
digits, and the residual CNN of examples/01_digits_cnn with its weights. No kernel reads such
convolutions, so the rules of the CPU get weights of 4 bits per channel, depthwise ones included,
and the simulation of the graph is run on the held-out half. Min-max with rounding to nearest is
what other tools do; the default has equalization, GPTQ and bias correction. One thread.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from cpu_rules import changed_rules
from safetensors.torch import load_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit.benchmarking.intervals import paired_score
from optkit.placement import PlacementRules
from optkit.precisions import NumberFormat
from optkit.qat.agreement import sqnr
from optkit.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
NEAREST: dict[str, object] = {
    "weights": "rtn",
    "smooth": "off",
    "equalize": "off",
    "bias_correction": False,
}


@dataclass(frozen=True)
class Case:
    """`drop`: of top-1 from FP32, in points, with its paired 95 % interval; `seconds` of the
    processor, from the module to the graph."""

    network: str
    bits: int
    settings: str
    top1: float
    fp32_top1: float
    drop: float
    interval: tuple[float, float]
    sqnr_db: float
    seconds: float


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


distilled = module(ROOT / "experiments/qat/distilled.py")


def networks(pictures: Tensor, labels: Tensor) -> dict[str, nn.Module]:
    cnn = module(ROOT / "examples/01_digits_cnn/model.py").create()
    load_model(cnn, ROOT / "examples/01_digits_cnn/weights.safetensors")
    return {"small MobileNetV2": distilled.trained(pictures, labels), "digits CNN": cnn.eval()}


def simulated(
    net: nn.Module,
    batches: list[Tensor],
    held: Tensor,
    bits: int,
    settings: dict[str, object],
    store: str,
) -> np.ndarray:
    """The logits of the graph whose weights have codes of so many bits."""

    def everywhere(rules: PlacementRules) -> PlacementRules:
        weight = NumberFormat("int8", "channel", symmetric=True, limit_bits=bits)
        return replace(rules, weight=weight, depthwise_conv="anywhere", kernels=None)

    recipe = {**distilled.RECIPE, "quantization": settings}
    workspace = Workspace(Path(store), listener=None)
    with changed_rules("int8", everywhere):
        logits: np.ndarray = distilled.graph_logits(
            net, batches, "cpu", "int8", held, recipe, workspace
        )
    return logits


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = load_digits()
    digits = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    pictures = F.interpolate(digits, size=32, mode="bilinear")
    labels, truth = torch.tensor(found.target[0::2]), found.target[1::2]
    batches, held = list(pictures[0::2][:448].split(16)), pictures[1::2]
    cases = []
    for name, net in networks(pictures[0::2], labels).items():
        with torch.no_grad():
            exact = net(held).numpy()
        right = exact.argmax(1) == truth
        for bits in (8, 4, 3):
            for told, settings in {"min-max, to nearest": NEAREST, "default": {}}.items():
                started = resource.getrusage(resource.RUSAGE_CHILDREN)
                with tempfile.TemporaryDirectory() as store:  # nothing is known beforehand
                    logits = simulated(net, batches, held, bits, settings, store)
                ended = resource.getrusage(resource.RUSAGE_CHILDREN)
                kept = logits.argmax(1) == truth
                drop = paired_score((right & ~kept).sum(), (kept & ~right).sum(), len(truth))
                case = Case(
                    name, bits, told, float(kept.mean()), float(right.mean()),
                    100 * float(right.mean() - kept.mean()), (100 * drop.low, 100 * drop.high),
                    sqnr(exact, logits),
                    ended.ru_utime - started.ru_utime + ended.ru_stime - started.ru_stime,
                )  # fmt: skip
                print(case, flush=True)
                cases.append(asdict(case))
    text = json.dumps({"evidence": "simulated", "cases": cases}, indent=1)
    Path(__file__).with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
