"""What the linear layers of a decoder lose with weights of one bit and of three values.

    python experiments/fourbit/one_bit.py [--peers PEERS] [--threads 2]

All linear layers but the last have such weights, with one scale per output and 64 inputs;
activations stay in float. A row of the codes is rounded after the ones before, with their error
compensated (GPTQ), and scales are fitted when their block is reached, unless a form is "to
nearest".

    ternary         -s, 0, s      s of the least squared error near the mean magnitude
    binary          -s, s         s = mean|w|
    BiLLM           inputs that count most, by w² / [H⁻¹]²: sign and sign of the rest (two scales);
                    all others: sign with one scale for the bell's middle and one for its tails,
                    split where the error is least (Huang et al. 2024, arXiv:2402.04291)
    INT2            a build's: four codes, signed scales, GPTQ, blocks of 64

The models are the decoder of bytes of examples/07_healed_decoder and, with PEERS (the folder of
`experiments/peers/run.py --root`), the workload w4. Perplexity is that of held-out windows, the
loss to FP32 in percent with the interval of a paired bootstrap. `bits`: of codes, with FP32 scales;
for BiLLM also the bits that say which inputs and which weights have which scale. `stored`: in
MatMulNBits of ONNX Runtime, whose codes of 2 bits hold -2 to 1 times one scale. `kernel_error`: of
one product there beside the float product of the same numbers, relative.

Writes one_bit.json beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from cases import Case, bytes_decoder, observed, of_peers
from onnx import TensorProto, helper
from torch.nn import functional

from optkit.benchmarking.intervals import bootstrap
from optkit.precisions import NumberFormat
from optkit.quantization.qdq import nbits
from optkit.quantization.rounding.gptq import gptq

BLOCK, DAMPING = 64, 0.01
INT2 = NumberFormat("int2", "block", symmetric=True, block_size=BLOCK, signed_scale=True)
SCALES = np.linspace(0.7, 1.9, 13)  # of ternary weights, in units of the mean magnitude
SALIENT = (0, 1, 2, 4, 6, 8, 12)  # inputs of a block
SPLITS = np.linspace(0.3, 0.95, 14)  # quantiles of |w|
Round = Callable[[int, np.ndarray], np.ndarray]  # row of the block, weights [N] → held


class Fitted(NamedTuple):
    """How the rows of one block are rounded. `codes`: bits of all its codes and masks; `scales`:
    how many of them."""

    round: Round
    codes: float
    scales: int


Fit = Callable[[np.ndarray, np.ndarray], Fitted]
"""From the block's weights [rows, N] and the diagonal of its factor [rows]."""


def ternary(w: np.ndarray, _: np.ndarray) -> Fitted:
    mean = np.abs(w).mean(axis=0)
    tries = np.stack([mean * ratio for ratio in SCALES])
    lost = [np.square(w - _nearest_of_three(w, s)).sum(axis=0) for s in tries]
    s = tries[np.argmin(lost, axis=0), np.arange(w.shape[1])]
    return Fitted(lambda _, row: _nearest_of_three(row, s), np.log2(3) * w.size, w.shape[1])


def _nearest_of_three(w: np.ndarray, s: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(w / np.where(s > 0, s, 1)), -1, 1) * s


def binary(w: np.ndarray, _: np.ndarray) -> Fitted:
    s = np.abs(w).mean(axis=0)
    return Fitted(lambda _, row: _sign(row) * s, w.size, w.shape[1])


def _sign(w: np.ndarray) -> np.ndarray:
    return np.where(w < 0, -1.0, 1.0)


def billm(w: np.ndarray, factor: np.ndarray) -> Fitted:
    """The number of salient inputs and the split with the least squared error."""
    order = np.argsort(-np.square(w / factor[:, None]).sum(axis=1))
    found = []
    for count in SALIENT:
        salient = np.zeros(len(w), bool)
        salient[order[:count]] = True
        found.append(_billm(w, salient))
    return min(found, key=lambda pair: pair[0])[1]


def _billm(w: np.ndarray, salient: np.ndarray) -> tuple[float, Fitted]:
    rest, kept = w[~salient], w[salient]
    error, split, low, high = min(
        (_two_scales(rest, float(np.quantile(np.abs(rest), q))) for q in SPLITS),
        key=lambda found: found[0],
    )
    first = np.abs(kept).mean(axis=0) if len(kept) else np.zeros(w.shape[1])
    residual = kept - _sign(kept) * first
    second = np.abs(residual).mean(axis=0) if len(kept) else first

    def rounded(index: int, row: np.ndarray) -> np.ndarray:
        if not salient[index]:
            return _sign(row) * np.where(np.abs(row) <= split, low, high)
        held = _sign(row) * first
        return held + _sign(row - held) * second

    if len(kept):
        error += float(np.square(residual - _sign(residual) * second).sum())
    # 1 bit for each sign, 1 for the second sign or the side of the split, 1 for salient inputs
    return error, Fitted(rounded, 2 * w.size + len(w), (4 if len(kept) else 2) * w.shape[1])


def _two_scales(w: np.ndarray, split: float) -> tuple[float, float, np.ndarray, np.ndarray]:
    """The squared error if magnitudes up to `split` have one scale and the others another."""
    size = np.abs(w)
    tail = size > split
    low, high = (
        (size * part).sum(axis=0) / np.maximum(part.sum(axis=0), 1) for part in (~tail, tail)
    )
    return float(np.square(size - np.where(tail, high, low)).sum()), split, low, high


class Held(NamedTuple):
    """A weight [K, N] and the bits that it takes."""

    numbers: np.ndarray
    bits: float


def solved(w: np.ndarray, h: np.ndarray, fit: Fit, *, compensate: bool) -> Held:
    """Round w [K, N] block by block and row by row; later rows take up the error of earlier ones
    (Frantar et al. 2022, arXiv:2210.17323)."""
    damped = h + np.eye(len(h)) * DAMPING * h.diagonal().mean()
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T  # U^T U = H^-1
    left, held, bits = w.astype(np.float64), np.empty(w.shape), 0.0
    for start in range(0, len(w), BLOCK):
        rows = slice(start, min(start + BLOCK, len(w)))
        fitted = fit(left[rows], upper.diagonal()[rows])
        bits += fitted.codes + 32 * fitted.scales
        lost = np.empty((rows.stop - start, w.shape[1]))
        for index in range(rows.start, rows.stop):
            held[index] = fitted.round(index - start, left[index])
            lost[index - start] = (left[index] - held[index]) / upper[index, index]
            if compensate:
                later = slice(index + 1, rows.stop)
                left[later] -= np.outer(upper[index, later], lost[index - start])
        if compensate:
            left[rows.stop :] -= upper[rows, rows.stop :].T @ lost
    return Held(held.astype(np.float32), bits)


def int2(w: np.ndarray, h: np.ndarray) -> Held:
    (result,) = gptq([w], h, INT2, np.float32, damping=DAMPING, sweeps=2)
    blocks = -(-w.shape[0] // BLOCK) * w.shape[1]
    return Held(result.dequantize(), 2 * w.size + 32 * blocks)


@dataclass(frozen=True)
class Form:
    name: str
    make: Callable[[np.ndarray, np.ndarray], Held]
    stored: str


TWO = "2 bits, exact: 2.5 with scales"
FORMS = (
    Form("INT2", int2, TWO),
    Form("ternary, to nearest", partial(solved, fit=ternary, compensate=False), TWO),
    Form("ternary", partial(solved, fit=ternary, compensate=True), TWO),
    Form("binary, to nearest", partial(solved, fit=binary, compensate=False), TWO),
    Form("binary", partial(solved, fit=binary, compensate=True), TWO),
    Form("BiLLM", partial(solved, fit=billm, compensate=True), "none: two scales for one block"),
)


def kernel_error(held: np.ndarray) -> float:
    """MatMulNBits of 2 bits with these ternary or binary weights [K, N], beside float64."""
    k, n = held.shape
    blocks = np.zeros((-(-k // BLOCK) * BLOCK, n), np.float32)
    blocks[:k] = held
    scale = np.abs(blocks.reshape(-1, BLOCK, n)).max(axis=1).T  # [N, blocks]
    codes = np.rint(held.T / np.where(scale > 0, scale, 1).repeat(BLOCK, axis=1)[:, :k])
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scale"], ["y"], domain="com.microsoft",
        **nbits.attributes(n, k, 2, BLOCK, 0),
    )  # fmt: skip
    packed = nbits.pack(codes.astype(np.int8), INT2, BLOCK)
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [onnx.numpy_helper.from_array(packed, "codes"),
         onnx.numpy_helper.from_array(np.ascontiguousarray(scale, np.float32), "scale")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(0).standard_normal((4, k)).astype(np.float32)
    expected = x.astype(np.float64) @ held
    (y,) = session.run(None, {"x": x})
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


@torch.no_grad()
def nats(case: Case) -> np.ndarray:
    """Of each held-out window, the mean per token."""
    means = []
    for found, (ids,) in zip(case.outputs(), case.test, strict=True):
        logits = torch.from_numpy(found)[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        means.append(loss.view(len(ids), -1).double().mean(1).numpy())
    return np.concatenate(means)


def measured(case: Case) -> list[dict[str, object]]:
    moments, _ = observed(case)
    layers = case.layers(but="lm_head")
    floats = {name: part.weight.detach().numpy().copy() for name, part in layers.items()}
    fp32 = nats(case)
    rows: list[dict[str, object]] = [
        {"model": case.name, "form": "FP32", "perplexity": round(float(np.exp(fp32.mean())), 3)}
    ]
    for form in FORMS:
        bits = 0.0
        for name, part in layers.items():
            held = form.make(floats[name].T, moments[name])
            bits += held.bits
            part.weight.data = torch.from_numpy(np.ascontiguousarray(held.numbers.T))
        found = nats(case)

        def loss(chosen: np.ndarray, found: np.ndarray = found) -> float:
            return 100 * float(np.exp(found[chosen].mean() - fp32[chosen].mean()) - 1)

        interval = bootstrap(len(fp32), loss)
        exact = form.stored == TWO and form.name != "INT2"
        rows.append({
            "model": case.name, "form": form.name,
            "bits": round(bits / sum(w.size for w in floats.values()), 2), "stored": form.stored,
            "perplexity": round(float(np.exp(found.mean())), 3),
            "loss_percent": [round(x, 1) for x in
                             (loss(np.arange(len(fp32))), interval.low, interval.high)],
            "kernel_error": kernel_error(held.numbers) if exact else None,
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    for name, part in layers.items():
        part.weight.data = torch.from_numpy(floats[name])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Weights of one bit and of three values.")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = [bytes_decoder()]
    if options.peers is not None:
        cases.append(of_peers(options.peers, "w4"))
    rows = [row for case in cases for row in measured(case)]
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
