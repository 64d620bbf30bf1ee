"""What the weights of a decoder lose in 2 bits, by format, rounding and size of blocks.

    python experiments/fourbit/two_bits.py [--threads 2]

The model is the decoder of bytes of examples/07_healed_decoder; all its linear layers but the last
are quantized, its activations stay in float. A row has the bits per weight with FP32 scales (and
zero points of 2 bits), the SQNR of all weights, the perplexity per byte of 256 held-out windows,
and its loss to FP32 with the interval of a paired bootstrap over windows.

Writes two_bits.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from optkit.benchmarking.intervals import bootstrap
from optkit.precisions import NumberFormat
from optkit.quantization.rounding.gptq import gptq
from optkit.quantization.rounding.rtn import Quantized, round_to_nearest

sys.path.append(str(Path(__file__).parents[2] / "examples" / "07_healed_decoder"))
import decoder  # of that folder

WINDOWS, LEARNED = 256, 64
SIGNED = NumberFormat("int2", "block", symmetric=True, block_size=64, signed_scale=True)
FORMATS = {
    "INT4, signed scales": replace(SIGNED, dtype="int4"),
    "INT2, signed scales": SIGNED,
    "INT2, zero points": NumberFormat("uint4", "block", False, limit_bits=2, block_size=64),
}
CASES = (
    ("INT4, signed scales", "gptq", 32),
    ("INT2, zero points", "mse", 64),
    ("INT2, zero points", "gptq", 64),
    ("INT2, signed scales", "rtn", 64),
    ("INT2, signed scales", "mse", 64),
    *(("INT2, signed scales", "gptq", size) for size in (16, 32, 64, 128)),
)
"""Format, rounding (as `quantization.weights` of a recipe), size of blocks."""


def layers(net: nn.Module) -> dict[str, nn.Linear]:
    """All but the last, by name."""
    linear = {name: part for name, part in net.named_modules() if isinstance(part, nn.Linear)}
    return {name: part for name, part in linear.items() if "lm_head" not in name}


def moments(net: nn.Module) -> dict[str, np.ndarray]:
    """E[x xᵀ] of the input of each layer, on windows of the training text."""
    sums: dict[str, torch.Tensor] = {}

    def add(name: str, x: torch.Tensor) -> None:
        rows = x.detach().flatten(0, -2).double()
        sums[name] = sums.get(name, torch.zeros(1)) + rows.T @ rows

    handles = [
        part.register_forward_pre_hook(lambda _, given, name=name: add(name, given[0]))
        for name, part in layers(net).items()
    ]
    with torch.no_grad():
        for ids in decoder.calibration(LEARNED):
            net(ids)
    for handle in handles:
        handle.remove()
    count = LEARNED * decoder.WINDOW
    return {name: (total / count).numpy() for name, total in sums.items()}


def quantized(w: np.ndarray, h: np.ndarray, fmt: NumberFormat, rounding: str) -> Quantized:
    """w [K, N]"""
    if rounding == "gptq":
        return gptq([w], h, fmt, np.float32)[0]
    search = "mse" if rounding == "mse" else "absmax"
    return round_to_nearest(w, fmt, np.float32, search=search)


def nats(net: nn.Module) -> np.ndarray:
    """Of each held-out window, the mean per byte."""
    with torch.no_grad():
        return np.concatenate([
            decoder.losses(net(ids).numpy(), ids.numpy())
            for ids in decoder.held_out(WINDOWS).split(32)
        ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="What weights lose in 2 bits.")
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    net = decoder.trained()
    floats = {name: part.weight.detach().numpy().copy() for name, part in layers(net).items()}
    learned, fp32 = moments(net), nats(net)
    rows: list[dict[str, object]] = [{"format": "FP32", "perplexity": float(np.exp(fp32.mean()))}]
    for name, rounding, size in CASES:
        fmt = replace(FORMATS[name], block_size=size)
        signal = noise = 0.0
        for layer, part in layers(net).items():
            w = floats[layer]
            held = quantized(w.T, learned[layer], fmt, rounding).dequantize().T
            signal, noise = signal + float(np.sum(w**2)), noise + float(np.sum((w - held) ** 2))
            part.weight.data = torch.from_numpy(np.ascontiguousarray(held))
        found = nats(net)

        def loss(chosen: np.ndarray, found: np.ndarray = found) -> float:
            return float(np.exp(found[chosen].mean()) - np.exp(fp32[chosen].mean()))

        interval = bootstrap(WINDOWS, loss)
        rows.append({
            "format": name, "rounding": rounding, "block_size": size,
            "bits": fmt.bits + (32 + (0 if fmt.symmetric else fmt.bits)) / size,
            "sqnr_db": 10 * float(np.log10(signal / noise)),
            "perplexity": float(np.exp(found.mean())),
            "loss": [loss(np.arange(WINDOWS)), interval.low, interval.high],
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
