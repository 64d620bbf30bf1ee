"""The detector in FP8 for an L4: the build, and the build after a training with its own losses.

    python quantize.py                     about ten minutes; writes two artifacts into artifacts/
    python quantize.py --out FOLDER
    python quantize.py --quick             two steps, and 32 scenes judge them

Each step draws new scenes with digits of the training part, as train.py does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from digit_scenes import feed, scene
from losses import loss
from model import create, middles
from safetensors.torch import load_file
from samples import samples
from torch import Tensor, nn
from train import BATCH, RADIUS, STEPS

import optkit
from optkit import qat

HERE = Path(__file__).resolve().parent
RATE = 3e-4  # a tenth of the float training's
RECIPE = {"axes": {"batch": {"min": 1, "opt": 8, "max": 32}}, "gates": {"max_drop": "1%"}}


def trained_in_float() -> nn.Module:
    net = create()
    net.load_state_dict(load_file(HERE / "weights.safetensors"))
    return net.eval()


def train(net: nn.Module, steps: int) -> None:
    """The losses of train.py, which read `net.maps`. BatchNorm keeps its statistics."""
    optimizer = torch.optim.AdamW(qat.parameter_groups(net, RATE), weight_decay=0)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=steps)
    for step in range(STEPS, STEPS + steps):  # scenes that the float training has not seen
        scenes = [scene("train", step * BATCH + one) for one in range(BATCH)]
        sides, logits = net.maps(torch.from_numpy(feed(scenes)["image"]))
        value = loss(sides, logits, middles(*logits.shape[2:]), scenes, RADIUS)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10)
        optimizer.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description="The detector in FP8, by PTQ and by QAT.")
    parser.add_argument("--out", type=Path, default=Path("artifacts"))
    parser.add_argument("--quick", action="store_true", help="two steps, 32 scenes judge them")
    options = parser.parse_args()
    steps, scenes = (2, 32) if options.quick else (400, 512)
    recipe = {**RECIPE, "eval": {"task": str(HERE / "task.py"), "args": {"scenes": scenes}}}
    torch.manual_seed(0)
    net = trained_in_float()
    calibration: list[Tensor] = [torch.from_numpy(each["image"]) for each in samples()]
    example = calibration[0][:8]

    def build(model: nn.Module, name: str) -> optkit.Artifact:
        return optkit.build(
            model, example, target="l4", precision="fp8", recipe=recipe, calibration=calibration,
            name=name, out=options.out,
        )  # fmt: skip

    ptq = build(net, "detector-ptq")
    trained = qat.prepare(  # 1
        net, example, target="l4", precision="fp8", recipe=recipe, calibration=calibration
    )
    train(trained, steps)
    after = build(qat.finalize(trained), "detector-qat")  # 2, 3

    for name, artifact in (("PTQ", ptq), ("QAT", after)):
        result = artifact.result
        print(f"{name}: {result['accuracy']['value']:.2%} mAP, gate: {result['gate']['verdict']}")


if __name__ == "__main__":
    main()
