"""How the weights of NVFP4 get the scales of their blocks, by the SQNR of the outputs.

    python experiments/fourbit/nvfp4.py [--peers PEERS] [--threads 2]

All linear layers of a digits ViT, of a decoder of bytes and, with PEERS (the folder of
`experiments/peers/run.py --root`), of its workloads w3 and w4 have weights in E2M1, once with float
activations and once with activations whose scales are computed at run time, as TensorRT does.
Simulated in float32. A row is one choice of scales:

    to 6          s = E4M3(max|w| / 6)
    four-over-six to 6 or to 4, whichever has the less squared error (Cook et al. 2025,
                  arXiv:2512.02010), to nearest
    searched      every E4M3 scale near these, by squared error; "local H": the error weighted by
                  the second moments of the block's inputs
    GPTQ          codes with compensation; scales by the criterion named, then two sweeps that also
                  fit them

`448` and `256`: the E4M3 scale that the largest weight of the tensor gets with code 6. Under 448,
the blocks with the largest weights cannot be scaled to 4.

Writes nvfp4.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from cases import Case, bytes_decoder, digits_vit, observed, of_peers
from layer_inputs import hooked
from torch import Tensor

from optkit.precisions import PRECISIONS
from optkit.qat.agreement import sqnr
from optkit.quantization.numerics import formats, scales
from optkit.quantization.numerics.scales import Scale
from optkit.quantization.qdq import dynamic
from optkit.quantization.rounding import gptq
from optkit.quantization.rounding.rtn import round_to_nearest

FMT = PRECISIONS["nvfp4"].weights or sys.exit("no format")
SWEEPS, DAMPING = 2, 0.01


@dataclass(frozen=True)
class Choice:
    """A way to choose scales and codes. `criterion`: of the scales."""

    name: str
    most: float  # the E4M3 scale of the largest weight
    criterion: str  # "absmax", "four-over-six", "mse", "local H", "pivots"
    solved: bool = False  # by GPTQ


CHOICES = (
    Choice("to 6", 448, "absmax"),
    Choice("four-over-six", 256, "four-over-six"),
    Choice("searched", 448, "mse"),
    Choice("searched", 256, "mse"),
    Choice("searched, local H", 448, "local H"),
    Choice("searched, local H", 256, "local H"),
    Choice("GPTQ, to 6", 448, "absmax", True),
    Choice("GPTQ, four-over-six", 256, "four-over-six", True),
    Choice("GPTQ, searched", 448, "mse", True),
    Choice("GPTQ, searched, local H", 448, "local H", True),
    Choice("GPTQ, searched, local H", 256, "local H", True),
    Choice("GPTQ, searched, pivots", 448, "pivots", True),
    Choice("GPTQ, searched, pivots", 256, "pivots", True),
)


def quantized(w: np.ndarray, h: np.ndarray, choice: Choice) -> np.ndarray:
    """w [K, N] as NVFP4 holds it; h [K, K]: the second moments of its input."""
    outer = scales.outer_scale(float(np.abs(w).max())) * np.float32(448 / choice.most)

    def chosen(pivots: np.ndarray | None) -> Scale:
        """pivots: those of GPTQ."""
        if choice.criterion == "four-over-six":
            return four_over_six(w, outer)
        search: scales.Search = "absmax" if choice.criterion == "absmax" else "mse"
        importance = {"local H": h, "pivots": pivots}.get(choice.criterion)
        return scales.weight_scale(
            w, 1, FMT, np.float32, search=search, importance=importance, outer=outer
        )

    if not choice.solved:
        return round_to_nearest(w, FMT, np.float32, scale=chosen(None)).dequantize()
    with mock.patch.object(gptq, "weight_scale", lambda *_, importance, **__: chosen(importance)):
        (result,) = gptq.gptq([w], h, FMT, np.float32, damping=DAMPING, sweeps=SWEEPS)
    return result.dequantize()


def four_over_six(w: np.ndarray, outer: np.ndarray) -> Scale:
    """Of each block, the scale of its largest number to 6 or to 4, by squared error."""
    peak = np.abs(w.reshape(-1, FMT.block_size, w.shape[1])).max(axis=1).astype(np.float64)
    made = []
    for code in (6, 4):
        held, _ = scales.carried(peak / code, np.float32, outer)
        scale = Scale(held, np.zeros(held.shape, formats.storage(FMT)), 0, outer)
        lost = w - round_to_nearest(w, FMT, np.float32, scale=scale).dequantize()
        error = np.square(lost.reshape(-1, FMT.block_size, w.shape[1])).sum(axis=1)
        made.append((scale, error))
    (six, lost_by_six), (four, lost_by_four) = made
    return six._replace(scale=np.where(lost_by_four < lost_by_six, four.scale, six.scale))


def measured(case: Case) -> list[dict[str, object]]:
    exact = np.concatenate([part.ravel() for part in case.outputs()])
    moments, largest = observed(case)
    layers = case.layers()
    floats = {name: part.weight.detach().clone() for name, part in layers.items()}

    def rounded(name: str, x: Tensor) -> Tensor:
        outer = float(scales.outer_scale(largest[name]))
        return torch.from_numpy(dynamic.rounded(x.numpy(), outer, FMT))

    rows = []
    for choice in CHOICES:
        signal = noise = 0.0
        for name, part in layers.items():
            w = np.ascontiguousarray(floats[name].numpy().T)
            held = quantized(w, moments[name], choice)
            signal, noise = signal + float(np.sum(w**2)), noise + float(np.sum((w - held) ** 2))
            part.weight.data = torch.from_numpy(np.ascontiguousarray(held.T))
        weights_alone = sqnr(exact, np.concatenate([part.ravel() for part in case.outputs()]))
        with hooked(layers, rounded):
            both = sqnr(exact, np.concatenate([part.ravel() for part in case.outputs()]))
        rows.append({
            "model": case.name, "scales": choice.name, "outer": choice.most,
            "weights_db": round(10 * float(np.log10(signal / noise)), 2),
            "outputs_db": round(weights_alone, 2), "with_activations_db": round(both, 2),
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    for name, part in layers.items():
        part.weight.data = floats[name]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Scales of NVFP4 weights.")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = [digits_vit(), bytes_decoder()]
    if options.peers is not None:
        cases += [of_peers(options.peers, name) for name in ("w3", "w4")]
    rows = [row for case in cases for row in measured(case)]
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
