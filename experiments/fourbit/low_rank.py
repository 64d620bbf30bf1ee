"""A decoder with weights of 4, 3 and 2 bits, without and with low-rank matrices beside them.

    python experiments/fourbit/low_rank.py PEERS    writes low_rank.json beside itself

The decoder is W4 of experiments/peers; PEERS is the folder of its `--root`. Codes are those of GPTQ
in blocks of 32 with the rules of a CPU build, but in the last layer as well, and as Q/DQ pairs,
because no kernel reads 3 bits. The low-rank matrices are the start of `qat.prepare_adapters`: the
SVD of the rounding error weighted by the second moments of the inputs (EoRA, Liu et al. 2024,
arXiv:2410.21271). Nothing is trained. SQNR is that of the logits of the module on the held-out
windows, in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from cpu_rules import changed_rules
from torch import Tensor, nn

from optkit import qat
from optkit.placement import PlacementRules
from optkit.qat.adapters import Adapter
from optkit.qat.agreement import sqnr
from optkit.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from networks import Decoder
from training import resume

BLOCK, WINDOWS, SAMPLES = 32, 200, 64


@dataclass(frozen=True)
class Row:
    """`bits` per weight: codes, and scales and matrices in FP16.
    `perplexity` is that of the next token."""

    bits_of_codes: int
    rank: int
    bits: float
    sqnr_db: float
    perplexity: float


def trained(peers: Path) -> nn.Module:
    model = Decoder()
    resume(model, torch.optim.AdamW(model.parameters()), peers / "models" / "w4.safetensors")
    return model.eval()


@torch.no_grad()
def logits(model: nn.Module, windows: Tensor) -> Tensor:
    return torch.cat([model(part) for part in windows.split(20)])


def perplexity(found: Tensor, windows: Tensor) -> float:
    loss = nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), windows[:, 1:].flatten())
    return float(loss.exp())


def prepared(model: nn.Module, calibration: list[Tensor], bits: int, rank: int) -> nn.Module:
    def fewer(rules: PlacementRules) -> PlacementRules:
        rules = rules.with_zero_points(False)
        weight = replace(rules.weight, limit_bits=bits)
        return replace(rules, weight=weight, nbits_accuracy=None, last=None)

    recipe = {"axes": {"batch": {"min": 1, "opt": 2, "max": 32}},
              "quantization": {"block_size": BLOCK}}  # fmt: skip
    with changed_rules("int4", fewer):
        return qat.prepare_adapters(
            model, calibration[0][:2], target="cpu", precision="int4", rank=max(rank, 1),
            recipe=recipe, calibration=calibration, workspace=Workspace(listener=None),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Weights of few bits with low-rank matrices.")
    parser.add_argument("peers", type=Path, help="the folder of experiments/peers/run.py --root")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with np.load(options.peers / "models" / "w4.npz") as data:
        held = torch.from_numpy(data["test.input_ids"][:WINDOWS])
        calibration = list(torch.from_numpy(data["calibration.input_ids"][:SAMPLES]).split(16))
    model = trained(options.peers)
    exact = logits(model, held)
    rows = []
    for bits in (4, 3, 2):
        for rank in (0, 8, 16, 24, 32):
            student = prepared(model, calibration, bits, rank)
            adapters = [part for part in student.modules() if isinstance(part, Adapter)]
            weights = sum(part.down.in_features * part.up.out_features for part in adapters)
            beside = sum(p.numel() for part in adapters for p in part.parameters()) if rank else 0
            for part in adapters if not rank else ():
                part.up.weight.data.zero_()
            found = logits(student, held)
            row = Row(
                bits, rank, bits + 16 / BLOCK + 16 * beside / weights,
                sqnr(exact.numpy(), found.numpy()), perplexity(found, held),
            )  # fmt: skip
            print(row, flush=True)
            rows.append(asdict(row))
    told = {"evidence": "measured", "fp32_perplexity": perplexity(exact, held), "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
