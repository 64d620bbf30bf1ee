"""Codes that are learned from more than the inputs of each layer in float.

    python experiments/fourbit/learned.py [NAME ...] [--peers PEERS] [--formats INT4 INT2]
        [--steps 200] [--threads 2]

All linear layers of a digits ViT, of a decoder of bytes and, with PEERS (the folder of
`experiments/peers/run.py --root`), of its workload w4 get codes of 4 bits in blocks of 32, and of 2
bits in blocks of 64, with signed scales. The last layer and activations stay in float. The ways:

    GPTQ                from the second moments of inputs in float, with two sweeps, as a build does
    GPTQ, 10 sweeps     with more coordinate descent
    inputs              GPTQ from the second moments of the quantized network's inputs
    GPTAQ, products     which makes up for the error of these inputs in each product
    GPTAQ               and for that of the sum to which a product is added, as a build does
    layers              GPTQ's codes, then learned from the same second moments (AdaRound)
    blocks              then learned from the outputs of blocks (AutoRound)
    network             then learned from the outputs of the network
    GPTAQ, network      GPTAQ's codes, then learned from the outputs of the network

Learned codes: Adam on one number per weight, with scales as they are, `--steps` batches; the last
float layer is GPTAQ's only in both rows of GPTAQ. A row has the SQNR of the outputs on held-out
samples, what it gains over GPTQ with the 95 % interval of a paired bootstrap over samples, the
divergence from the float network's classes, and the CPU seconds.

Writes learned.json beside itself; rows that are there are kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cases
import learned_codes as codes
import numpy as np
import torch
from cases import Case
from learned_codes import Chosen, Network

from optkit.benchmarking.intervals import bootstrap
from optkit.precisions import NumberFormat
from optkit.qat.agreement import sqnr

INT4 = NumberFormat("int4", "block", symmetric=True, block_size=32, signed_scale=True)
FORMATS = {"INT4": INT4, "INT2": replace(INT4, dtype="int2", block_size=64)}
FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Study:
    case: Case
    network: Network


def digits_vit() -> Study:
    case = cases.digits_vit()
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().images[:768, None] / 16).float()
    blocks = [f"blocks.{index}" for index in range(4)]
    sums = {f"{block}.attention.proj": f"{block}.norm2" for block in blocks}
    sums |= {f"{block}.mlp.2": block for block in blocks}
    batches = [(part,) for part in images.split(64)]
    return Study(replace(case, calibration=batches), Network(case.net, blocks, sums, "head"))


def llama(case: Case, model: str) -> Study:
    count = sum(name.endswith(".mlp") for name, _ in case.net.named_modules())
    blocks = [f"{model}.model.layers.{index}" for index in range(count)]
    sums = {f"{block}.self_attn.o_proj": f"{block}.post_attention_layernorm" for block in blocks}
    sums |= {f"{block}.mlp.down_proj": block for block in blocks}
    return Study(case, Network(case.net, blocks, sums, f"{model}.lm_head"))


def bytes_decoder() -> Study:
    case = cases.bytes_decoder()
    import decoder

    batches = [(ids,) for ids in decoder.calibration(128)]
    return llama(replace(case, calibration=batches), "llama")


def ways(study: Study, fmt: NumberFormat, steps: int) -> Iterator[tuple[str, Callable[[], Chosen]]]:
    network, batches = study.network, study.case.calibration
    kept: dict[str, Chosen] = {}

    def start(name: str, make: Callable[[], Chosen]) -> Callable[[], Chosen]:
        def once() -> Chosen:
            kept[name] = make()
            return kept[name]

        return once

    yield "GPTQ", start("GPTQ", lambda: codes.of_layers(network, fmt, batches, codes.SWEEPS))
    yield "GPTAQ", start("GPTAQ", lambda: codes.in_order(network, fmt, batches))
    yield "network", lambda: codes.of_the_network(network, kept["GPTQ"], batches, steps)
    yield "blocks", lambda: codes.of_blocks(network, kept["GPTQ"], batches, steps)
    yield "GPTAQ, products", lambda: codes.in_order(network, fmt, batches, sums=False)
    yield "inputs", lambda: codes.in_order(network, fmt, batches, alpha=0.0)
    yield "GPTQ, 10 sweeps", lambda: codes.of_layers(network, fmt, batches, 10)
    yield "layers", lambda: codes.of_moments(network, kept["GPTQ"], batches, steps)
    yield "GPTAQ, network", lambda: codes.of_the_network(network, kept["GPTAQ"], batches, steps)


def divergence(exact: np.ndarray, found: np.ndarray) -> float:
    p, q = (torch.from_numpy(y).double().log_softmax(-1) for y in (exact, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


def gain(exact: np.ndarray, before: np.ndarray, after: np.ndarray) -> list[float]:
    """dB, with its interval."""

    def noises(found: np.ndarray) -> np.ndarray:
        return np.square(found - exact, dtype=np.float64).reshape(len(exact), -1).sum(1)

    old, new = noises(before), noises(after)

    def decibels(chosen: np.ndarray) -> float:
        return float(10 * np.log10(old[chosen].sum() / new[chosen].sum()))

    interval = bootstrap(len(exact), decibels)
    return [decibels(np.arange(len(exact))), interval.low, interval.high]


@torch.no_grad()
def outputs(net: torch.nn.Module, case: Case) -> np.ndarray:
    return np.concatenate([net(*part).numpy() for part in case.test])


def measure(
    study: Study, name: str, formats: list[str], steps: int, rows: list[dict[str, object]]
) -> None:
    case, exact = study.case, outputs(study.network.net, study.case)
    for label in formats:
        before, fmt = None, FORMATS[label]
        for way, choose in ways(study, fmt, steps):
            key = {"model": name, "format": label, "way": way}
            known = any(row.items() >= key.items() for row in rows)
            if known and way not in ("GPTQ", "GPTAQ"):
                continue  # the others begin with these two
            began = time.process_time()
            chosen = choose()
            seconds = time.process_time() - began
            found = outputs(chosen.applied(study.network), case)
            before = found if before is None else before
            row = key | {
                "sqnr_db": sqnr(exact, found), "gain_db": gain(exact, before, found),
                "divergence": divergence(exact, found), "cpu_seconds": seconds,
            }  # fmt: skip
            if not known:
                rows.append(row)
            print(json.dumps(row), flush=True)
            told = {"evidence": "simulated", "steps": steps, "rows": rows}
            FILE.write_text(json.dumps(told, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Codes that are learned from outputs.")
    parser.add_argument("names", nargs="*", default=["vit", "bytes"], help="vit, bytes, w4")
    parser.add_argument("--peers", type=Path, help="the folder of experiments/peers/run.py --root")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    studies: dict[str, Callable[[], Study]] = {
        "vit": digits_vit, "bytes": bytes_decoder,
        "w4": lambda: llama(cases.of_peers(asked.peers, "w4"), "body"),
    }  # fmt: skip
    for name in asked.names:
        measure(studies[name](), name, asked.formats, asked.steps, rows)


if __name__ == "__main__":
    main()
