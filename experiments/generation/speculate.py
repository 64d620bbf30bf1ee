"""Speculative decoding beside plain decoding: is the text the same, and how fast is it?

    python experiments/generation/speculate.py PROJECT --root SCRATCH [--threads 1] [--rounds 3]

PROJECT holds a Hugging Face folder model/, a smaller one draft/ with the same tokenizer
(train_draft.py), a recipe, and texts in data/held-out.jsonl, as examples/02_tiny_llama. Prompts
are 128 pieces of 96 tokens of held-out Python files. Each is continued by 64 tokens, whether a
token would end it or not, for each precision of the artifact:

    greedy    by plain decoding, prompt lookup and the draft model; the texts must be equal. Greedy
              texts of a small model repeat themselves
    sampled   the same with temperature 0.8 and a seed for each prompt; with prompt lookup the texts
              must be equal, with the draft model only their distribution is the same. There is
              little to look up

Texts that differ are counted, and for the first different token the distance between the two
highest logits of plain decoding. Speed: tokens per second of decode relative to plain decoding of
the same prompt in the same round, in which each prompt is continued in each way, in random order;
of each prompt the median over the rounds. The interval is a bootstrap over the prompts. The result
goes to speculate.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from decode import artifact
from safetensors.numpy import load_file
from transformers import AutoTokenizer

import optkit
from optkit.artifact import Running
from optkit.benchmarking.intervals import mean_bootstrap
from optkit.decoder import Decoder
from optkit.devices import cpu
from optkit.generation.acceptance import SampledAcceptance, accept_greedy
from optkit.generation.cached_text import CachedText
from optkit.generation.decoding import Ending, Pace, decode
from optkit.generation.draft_length import DraftLength
from optkit.generation.drafters import DraftModel, PromptLookup
from optkit.generation.sampling import Draw, Sampling, greedy
from optkit.generation.speculation import Speculator

PROMPTS, PROMPT, NEW = 128, 96, 64
TEMPERATURE = 0.8
PRECISIONS = ("fp32", "int4")
DRAFT = "fp32"

Write = Callable[[int], tuple[list[int], Pace]]
"""Continue the prompt of this number: its new tokens, and the pace of decode."""


@dataclass
class Way:
    """One way to decode all prompts."""

    write: Write
    writer: Speculator | None = None
    texts: list[list[int]] = field(default_factory=list)
    speeds: list[list[float]] = field(default_factory=list)  # by round, then by prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="artifacts and cache")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = (options.project / "draft").resolve()
    draft = artifact(options.project, DRAFT, (f"model.path={folder}",), options.root, "draft")
    read = prompts(options.project)
    rows = []
    with optkit.load(draft).session(threads=options.threads) as drafting:
        for precision in PRECISIONS:
            path = artifact(options.project, precision, (), options.root, precision)
            with optkit.load(path).session(threads=options.threads) as session:
                for row in compared(session, drafting, read, options.rounds):
                    rows.append({"precision": precision, **row})
                    print(json.dumps(rows[-1]), flush=True)
    found = {"circumstances": circumstances(options), "rows": rows}
    Path(__file__).with_name("speculate.json").write_text(f"{json.dumps(found, indent=1)}\n")


def prompts(project: Path) -> list[list[int]]:
    """Pieces of held-out texts, one after the other."""
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    lines = (project / "data" / "held-out.jsonl").read_text().splitlines()
    texts = [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]
    pieces = [ids[at : at + PROMPT] for ids in texts for at in range(0, len(ids) - PROMPT, PROMPT)]
    chosen = np.linspace(0, len(pieces) - 1, PROMPTS).astype(int)
    return [pieces[at] for at in chosen]


def compared(
    session: Running, drafting: Running, read: list[list[int]], rounds: int
) -> Iterator[dict[str, Any]]:
    for temperature in (None, TEMPERATURE):
        ways = {
            "plain": Way(plain(session, read, temperature)),
            "prompt lookup": speculating(session, None, read, temperature),
            "draft model": speculating(session, drafting, read, temperature),
        }
        race(list(ways.values()), len(read), rounds)
        base = ways.pop("plain")
        for name, way in ways.items():
            differ = [i for i, (a, b) in enumerate(zip(base.texts, way.texts, strict=True))
                      if a != b]  # fmt: skip
            assert way.writer is not None
            yield {
                "text": "greedy" if temperature is None else "sampled",
                "drafts": name,
                "equal": len(read) - len(differ),
                "of": len(read),
                "margins": [] if temperature else [
                    margin(session, read[i], base.texts[i], way.texts[i]) for i in differ
                ],
                **counted(way.writer),
                **speed(base, way),
            }  # fmt: skip


def plain(session: Running, read: list[list[int]], temperature: float | None) -> Write:
    decoder = of(session)

    def write(number: int) -> tuple[list[int], Pace]:
        sampling = None if temperature is None else Sampling(temperature, seed=number)
        choose = greedy if sampling is None else Draw(sampling, 1)
        made = decode(session, decoder, [read[number]], ENDING, choose, lambda row, token: None)
        return made.tokens[0], made.decode

    return write


def speculating(
    session: Running, drafting: Running | None, read: list[list[int]], temperature: float | None
) -> Way:
    """Of the draft model, or of prompt lookup. What is learned about times and acceptance passes
    from prompt to prompt."""
    sampling = None if temperature is None else Sampling(temperature)
    vocabulary = of(session).vocabulary
    drafter = (
        PromptLookup() if drafting is None
        else DraftModel(drafting, of(drafting), vocabulary, None, sampling)
    )  # fmt: skip
    writer = Speculator(session, of(session), drafter, DraftLength())

    def write(number: int) -> tuple[list[int], Pace]:
        accept = (
            accept_greedy if temperature is None
            else SampledAcceptance(Sampling(temperature, seed=number), 0)
        )  # fmt: skip
        made = writer.write(read[number], number, ENDING, accept, lambda row, token: None)
        return made.tokens[0], made.decode

    return Way(write, writer)


ENDING = Ending(frozenset(), NEW, 0)


def race(ways: list[Way], count: int, rounds: int) -> None:
    """Every prompt in every way, in an order drawn anew. The texts are those of the last round."""
    random = np.random.default_rng(0)
    for way in ways:
        way.write(0)  # warms up
    for _ in range(rounds):
        for way in ways:
            way.texts = []
            way.speeds.append([])
        for number in range(count):
            for index in random.permutation(len(ways)):
                tokens, pace = ways[index].write(number)
                ways[index].texts.append(tokens)
                ways[index].speeds[-1].append(pace.tokens / pace.seconds)


def speed(base: Way, way: Way) -> dict[str, Any]:
    """Of each prompt the median ratio over the rounds; their mean with its interval, and the share
    of prompts that are slower than 0.95 of plain decoding."""
    ratios = np.median(np.array(way.speeds) / np.array(base.speeds), axis=0)
    low, high = mean_bootstrap(ratios)
    return {
        "speed": round(float(ratios.mean()), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "median": round(float(np.median(ratios)), 3),
        "slower_than_095": round(float((ratios < 0.95).mean()), 3),
        "plain_tokens_per_second": round(float(np.median(base.speeds)), 1),
    }


def counted(writer: Speculator) -> dict[str, Any]:
    """Over all rounds."""
    counts = writer.counts
    tokens = counts.runs + counts.accepted
    return {
        "acceptance_rate": round(counts.accepted / counts.drafted, 3) if counts.drafted else None,
        "drafted_per_run": round(counts.drafted / counts.runs, 3),
        "tokens_per_run": round(tokens / counts.runs, 3),
    }


def margin(session: Running, prompt: list[int], one: list[int], other: list[int]) -> float:
    """Where two texts part: the distance between the two highest logits, token by token."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    text = CachedText(session, of(session), len(prompt) + at)
    logits = text.read(prompt)[-1]
    for token in one[:at]:
        logits = text.read([token])[-1]
    high = np.sort(logits)[-2:]
    return float(high[1] - high[0])


def of(session: Running) -> Decoder:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    return decoder


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    vector = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8")
              if name in cpu().features]  # fmt: skip
    return {
        "date": date.today().isoformat(),
        "evidence": "measured",
        "processor": next(
            (line.split(": ")[1] for line in lines if "model name" in line), platform.machine()
        ),
        "instruction_sets": vector,
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "rounds": options.rounds,
        "load": round(os.getloadavg()[0], 1),
        "prompts": PROMPTS, "prompt_tokens": PROMPT, "new_tokens": NEW,
        "parameters": {name: parameters(options.project / name) for name in ("model", "draft")},
        "versions": {name: version(name) for name in ("onnxruntime", "torch", "transformers")},
    }  # fmt: skip


def parameters(folder: Path) -> int:
    return sum(weight.size for weight in load_file(folder / "model.safetensors").values())


if __name__ == "__main__":
    main()
