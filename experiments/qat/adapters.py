"""FP32, PTQ and healing adapters, kept and merged, with intervals.

    python experiments/qat/adapters.py SCRATCH [--case NAME] [--steps 120] [--windows 256]

The model is the decoder of bytes of examples/07_healed_decoder. Each case is a precision on `cpu`
with the recipe that a user would write. The adapters are trained by distillation (`qat.distill`, KL
divergence) on random windows of the training text. Perplexities are of the simulations of the
graphs on held-out windows, intervals are paired bootstraps over windows.

Writes a line per case into adapters.json beside this file; the float model is kept in SCRATCH.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from cases import PERPLEXITY, Case, Metric, bytes_decoder, decoder
from table import command_line, graph_score, in_torch, write_rows
from torch import Tensor, nn

from optkit import qat
from optkit.benchmarking.intervals import bootstrap
from optkit.qat.adapters import Adapter
from optkit.workspace import Workspace

BATCHES = 128

CASES: dict[str, tuple[str, dict[str, object], int | None]] = {
    "INT4 in blocks of 128": ("int4", {"block_size": 128}, None),
    "the same, rank 8": ("int4", {"block_size": 128}, 8),
    "the same, rounded to nearest, rank 8": ("int4", {"block_size": 128, "weights": "rtn"}, 8),
    "NF4, rank 8": ("nf4", {}, 8),
    "INT2, rank 8": ("int2", {}, 8),
}
"""Precision, quantization of the recipe, rank."""


def case_of(scratch: Path, name: str, held_out: int) -> Case:
    precision, quantization, _ = CASES[name]
    return bytes_decoder(scratch, "cpu", quantization, held_out, precision)


def windows() -> list[dict[str, Tensor]]:
    text = decoder.training_bytes()
    starts = torch.randint(len(text) - decoder.WINDOW, (BATCHES, decoder.BATCH, 1))
    return [{"ids": text[each + torch.arange(decoder.WINDOW)].long()} for each in starts]


def in_floats(case: Case, net: nn.Module) -> Metric:
    return case.score(in_torch(net))[PERPLEXITY]


def row(case: Case, rank: int | None, steps: int) -> dict[str, object]:
    """A loss is that to FP32, a gain is that to PTQ, in perplexity."""
    workspace = Workspace(listener=None)
    torch.manual_seed(1)
    started = time.monotonic()
    student = qat.prepare_adapters(
        case.net, {case.input: case.calibration[0][:4]}, target=case.target,
        precision=case.precision, rank=rank, recipe=case.recipe, calibration=case.feeds(),
        workspace=workspace,
    )  # fmt: skip
    begun = in_floats(case, student)
    distilled = qat.distill(
        student, windows(), loss=qat.Distillation(student, loss="kl"), steps=steps,
        workspace=workspace,
    )  # fmt: skip
    minutes = (time.monotonic() - started) / 60
    fp32, ptq = in_floats(case, case.net), graph_score(case, case.net)[PERPLEXITY]
    kept, merged = (graph_score(case, qat.finalize(student, adapters=way))[PERPLEXITY]
                    for way in ("keep", "merge"))  # fmt: skip

    def lead(first: Metric, second: Metric) -> list[float]:
        def difference(indices: np.ndarray) -> float:
            return second(indices) - first(indices)

        found = bootstrap(case.samples, difference)
        return [difference(np.arange(case.samples)), found.low, found.high]

    adapters = [part for part in student.modules() if isinstance(part, Adapter)]
    everything = np.arange(case.samples)
    return {
        "precision": case.precision, "quantization": case.quantization, "rank": rank,
        "adapter_parameters": sum(p.numel() for each in adapters for p in each.parameters()),
        "parameters": sum(p.numel() for p in case.net.parameters()),
        "windows": case.samples, "fp32": fp32(everything),
        "ptq_loss": lead(fp32, ptq), "start_loss": lead(fp32, begun),
        "kept_loss": lead(fp32, kept), "kept_gain": lead(kept, ptq),
        "merged_loss": lead(fp32, merged), "merged_gain": lead(merged, ptq),
        "kl": [distilled.loss_before, distilled.loss_after],
        "steps": steps, "minutes": minutes, "threads": torch.get_num_threads(),
    }  # fmt: skip


def main() -> None:
    parser = command_line("FP32, PTQ and healing adapters.", CASES)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--windows", type=int, default=256, help="held-out windows")
    options = parser.parse_args()

    def row_of(name: str) -> dict[str, object]:
        return row(case_of(options.scratch, name, options.windows), CASES[name][2], options.steps)

    write_rows(options, CASES, row_of, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    main()
