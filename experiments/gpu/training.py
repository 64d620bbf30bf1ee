"""Quantization-aware training on a GPU: does it work there, and what does a step cost?

    python experiments/gpu/training.py --out training.json

No results are committed: pending. A first run on an H200 found quantizers on the CPU, which is
mended and tested with torch's `meta` device.

Two models. The digits CNN of the examples is prepared on the device for `l4` in INT8, trained with
autocast in bfloat16, finalized, and its Q/DQ graph is compared with the trained module. A ResNet-50
of timm with random weights is timed: milliseconds per training step of the float module and of the
prepared one, eager and compiled, in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.pipeline import tool_versions
from optkit.satellites import qat
from optkit.satellites.qat.agreement import sqnr

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_digits_cnn"
sys.path.insert(0, str(EXAMPLE))
from model import create  # noqa: E402

BATCH, SIDE, STEPS, ROUNDS = 64, 224, 10, 7


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    return F.interpolate(images, size=32, mode="bilinear").cuda(), torch.tensor(found.target).cuda()


def step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def trained() -> dict[str, Any]:
    """Top-1 of the module and of the graph, and how close they are."""
    torch.manual_seed(0)
    images, labels = digits()
    net = create()
    net.load_state_dict(load_file(EXAMPLE / "weights.safetensors"))
    net.cuda().eval()
    calibration = list(images[0::2][:256].split(8))
    recipe = {"axes": {"batch": {"min": 1, "opt": 8, "max": 32}}}
    started = time.perf_counter()
    prepared = qat.prepare(net, images[:4], target="l4", recipe=recipe, calibration=calibration,
                           workspace=Workspace(listener=None))  # fmt: skip
    prepare_seconds = time.perf_counter() - started
    prepared.train()
    optimizer = torch.optim.AdamW(prepared.parameters(), lr=1e-4, weight_decay=0)
    started = time.perf_counter()
    for _ in range(200):
        chosen = torch.randint(0, len(images) // 2, (64,), device="cuda") * 2
        step(prepared, optimizer, images[chosen], labels[chosen])
    torch.cuda.synchronize()
    train_seconds = time.perf_counter() - started
    prepared.eval()
    held_out, truth = images[1::2], labels[1::2].cpu().numpy()
    with torch.no_grad():
        module, floats = prepared(held_out).cpu().numpy(), net(held_out).cpu().numpy()
    runner = Workspace(listener=None).runner()
    job = jobs.job_of(
        qat.finalize(prepared), images[:4], jobs.pair("l4", "int8"), recipe=recipe,
        calibration=calibration, name="digits", runner=runner,
    )  # fmt: skip
    found = pipeline.run(job, runner, pipeline.QUANTIZE)
    assert found.quantized is not None
    file = found.quantized.path / found.quantized.simulation
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        (graph,) = session.run({"image": held_out.cpu().numpy()}).values()
    return {
        "prepare_seconds": round(prepare_seconds, 2),
        "train_seconds_of_200_steps": round(train_seconds, 2),
        "top1_float": float((floats.argmax(1) == truth).mean()),
        "top1_module": float((module.argmax(1) == truth).mean()),
        "top1_graph": float((graph.argmax(1) == truth).mean()),
        "sqnr_of_the_graph_to_the_module_db": round(sqnr(module, graph), 1),
        "digits": len(truth),
    }


def timed() -> dict[str, Any]:
    """Medians over rounds of the milliseconds of a step, and their ratios to float."""
    import timm

    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, SIDE, SIDE, device="cuda")
    y = torch.randint(0, 1000, (BATCH,), device="cuda")
    net = timm.create_model("resnet50").cuda().eval()
    started = time.perf_counter()
    prepared = qat.prepare(net, x[:2], target="l4", calibration=list(x[:16].split(2)),
                           workspace=Workspace(listener=None))  # fmt: skip
    seconds = time.perf_counter() - started
    ways: dict[str, Callable[[], None]] = {}
    for name, module in (("float", net), ("prepared", prepared)):
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        for kind, used in (("eager", module), ("compiled", torch.compile(module))):
            ways[f"{name} {kind}"] = lambda u=used, o=optimizer: step(u, o, x, y)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(3):
            way()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                way()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - began) / STEPS)
    found = {name: round(median(each), 2) for name, each in times.items()}
    return {
        "model": "resnet50", "batch": BATCH, "side": SIDE, "prepare_seconds": round(seconds, 1),
        "ms_per_step": found,
        "ratio_eager": round(found["prepared eager"] / found["float eager"], 2),
        "ratio_compiled": round(found["prepared compiled"] / found["float compiled"], 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="write the results there, as JSON")
    out = parser.parse_args().out
    document: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "versions": {**tool_versions(), "cuda": torch.version.cuda},
        "evidence": "measured",
    }
    for name, work in (("trained", trained), ("timed", timed)):
        document[name] = work()
        print(name, json.dumps(document[name]), flush=True)
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
