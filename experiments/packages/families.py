"""Checkpoints of the format compressed-tensors: families of decoders × schemes.

    python experiments/packages/families.py SCRATCH --out experiments/packages/families.json
    python experiments/packages/families.py SCRATCH --families llama --steps 5

Trains a small decoder of each family on modules of Python's standard library, builds it, packages
it, and reads the package with compressed-tensors and transformers on this CPU: are the codes those
of the graph, how far are the logits from the artifact's session (root mean square, relative), and
the perplexity of both on held-out text. A family or scheme that is refused has the reason instead.
Needs what the tests need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sysconfig
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file

import optkit
from optkit.errors import OptkitError
from optkit.verbs import api
from tests.generation import families
from tests.packaging import checkpoints, programs

_PLAIN = ("quantization.smooth=off", "quantization.bias_correction=false")
_SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 320,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_LENGTH, _BATCH, _WINDOWS = 128, 8, 8
_NETWORKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "Mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": 64}),
    "Qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "Qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 32}),
    "Gemma 3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM,
                {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": False,
                 "layer_types": ["sliding_attention", "full_attention"]}),
    "Phi-3": (hf.Phi3Config, hf.Phi3ForCausalLM, {}),
    "GPT-NeoX": (hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, {}),
}  # fmt: skip
_AXES = ("axes.batch={min: 1, opt: 1, max: 2}", "axes.sequence={min: 1, opt: 128, max: 128}",
         "axes.past_sequence={min: 0, opt: 0, max: 128}")  # fmt: skip
_BUILDS = {  # scheme → target, precision, settings
    "W4A16": ("l4", "int4", ()),
    "W8A16": ("l4", "int8-weight-only", ()),
    "INT8": ("l4", "int8", _PLAIN),
    "FP8": ("l4", "fp8", (*_PLAIN, "quantization.kv_cache=fp8")),
    "NVFP4": ("rtx-5090", "nvfp4", _PLAIN),
}


def texts() -> tuple[list[str], list[str]]:
    """To train on, and held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:80]
    read = [path.read_text(errors="replace")[:6000] for path in files]
    return [text for at, text in enumerate(read) if at % 5], read[::5]


def trained(family: str, folder: Path, steps: int) -> np.ndarray:
    """Writes the model, its tokenizer and texts; returns held-out ids [windows, tokens]."""
    seen, unseen = texts()
    tokenizer = families.tokenizer(seen)
    learn, held = (
        torch.tensor([one for row in tokenizer(part)["input_ids"] for one in row])
        for part in (seen, unseen)
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, network, more = _NETWORKS[family]
    model = network(config(**{**_SIZES, **more})).train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        places = torch.randint(len(learn) - _LENGTH, (_BATCH, 1)) + torch.arange(_LENGTH)
        loss = model(input_ids=learn[places], labels=learn[places]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    lines = [json.dumps({"text": text[:400]}) for text in seen]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return held[: _WINDOWS * _LENGTH].reshape(_WINDOWS, _LENGTH).numpy()


def codes_are_equal(artifact: optkit.Artifact, folder: Path) -> tuple[int, int]:
    """Linear layers whose codes are those of the graph, and all that have codes."""
    stored, equal = checkpoints.tensors(folder), 0
    graph = checkpoints.codes_in_graph(artifact)
    for module, (codes, scales) in graph.items():
        parts = {key.rpartition(".")[2]: stored[key] for key in stored
                 if key.rpartition(".")[0] == module}  # fmt: skip
        same = np.array_equal(checkpoints.unpacked(parts, codes.shape), codes)
        if scales is not None:
            same &= np.array_equal(parts["weight_scale"].to(torch.float32).numpy(), scales)
        equal += same
    return equal, sum(key.endswith(".weight_scale") for key in stored)


def without_cache(folder: Path) -> None:
    """The same package without the scales of a cache."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = None
    (folder / "config.json").write_text(json.dumps(config))
    file, tensors = folder / "model.safetensors", checkpoints.tensors(folder)
    kept = {key: each for key, each in tensors.items() if key[-8:] not in (".k_scale", ".v_scale")}
    save_file(kept, file, metadata={"format": "pt"})


def forms(scheme: str, artifact: optkit.Artifact, out: Path) -> Iterator[tuple[str, Path]]:
    """The packages of an artifact, by scheme."""
    for dynamic in (False, True) if scheme in ("INT8", "FP8") else (False,):
        name = f"{scheme} dynamic" if dynamic else scheme
        made = api.package(
            artifact.path, format="compressed-tensors", out=out / name, dynamic=dynamic
        )
        folder = Path(made["folder"])
        if scheme == "FP8":
            yield f"{name}, cache in FP8", folder
            without_cache(folder)
        yield name, folder


def rows(
    family: str, folder: Path, ids: np.ndarray, schemes: list[str]
) -> Iterator[dict[str, Any]]:
    for scheme in schemes:
        target, precision, settings = _BUILDS[scheme]
        try:
            artifact = optkit.build(
                optkit.Request(str(folder / "model"), overrides=(*_AXES, *settings),
                               calibration=str(folder / "texts.jsonl")),
                target=target, precision=precision, out=folder / "artifacts",
                workspace=optkit.Workspace(folder / "cache"),
            )  # fmt: skip
            session = checkpoints.of_session(artifact, ids)
            for name, package in forms(scheme, artifact, folder / "packages"):
                equal, layers = codes_are_equal(artifact, package)
                read = checkpoints.of_transformers(package, ids)
                yield {
                    "family": family, "scheme": name, "equal": equal, "layers": layers,
                    "apart": checkpoints.apart(read, session),
                    "perplexity": programs.perplexity(session, ids),
                    "transformers": programs.perplexity(read, ids),
                    "divergence": programs.divergence(session, read),
                }  # fmt: skip
        except OptkitError as error:
            yield {"family": family, "scheme": scheme, "refused": error.message}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--families", default=",".join(_NETWORKS))
    parser.add_argument("--schemes", default=",".join(_BUILDS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, help="a file for the figures")
    given = parser.parse_args()
    found = []
    for family in given.families.split(","):
        folder = given.scratch / family
        (folder / "packages").mkdir(parents=True, exist_ok=True)
        ids = trained(family, folder, given.steps)
        for row in rows(family, folder, ids, given.schemes.split(",")):
            print(json.dumps(row), flush=True)
            found.append(row)
            if given.out is not None:
                figures = {"date": str(date.today()), "processor": platform.machine(),
                           "cores": os.cpu_count(), "steps": given.steps,
                           "rows": found}  # fmt: skip
                given.out.write_text(f"{json.dumps(figures, indent=1)}\n")


if __name__ == "__main__":
    main()
