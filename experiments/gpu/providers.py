"""Real models on ONNX Runtime's CUDA provider, beside what is predicted for TensorRT.

    python experiments/gpu/providers.py --target h100 --out providers.json

A vision transformer and a ResNet of timm, and a decoder of transformers' Llama, with random
weights. Each is built for the target in FP16 and in a quantized precision (`--defer`: no engine),
and the artifact's graph runs on this card through CUDA, as `optkit.load(...).run` does without an
engine. Latencies are from host to host, at the opt sizes, in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import optkit
from optkit.ground.runtimes import SessionOptions, backend
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import tool_versions

ROUNDS, SECONDS = 7, 0.3


def vision(name: str) -> Callable[[], tuple[nn.Module, Any, list[Any]]]:
    def made() -> tuple[nn.Module, Any, list[Any]]:
        import timm

        x = torch.randn(16, 3, 224, 224)
        return timm.create_model(name).eval(), x[:8], list(x.split(8))

    return made


class Decoder(nn.Module):
    """Logits of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.net = LlamaForCausalLM(LlamaConfig(
            vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6,
            num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=True,
        ))  # fmt: skip

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.net(input_ids=input_ids, use_cache=False).logits  # type: ignore[no-any-return]


def decoder() -> tuple[nn.Module, Any, list[Any]]:
    ids = torch.randint(0, 8192, (16, 128))
    return Decoder().eval(), ids[:1], list(ids.split(1))


MODELS = {
    "vit_small_patch16_224": (vision("vit_small_patch16_224"), ("fp16", "int8")),
    "resnet50": (vision("resnet50"), ("fp16", "int8")),
    "llama 6 x 1024, prompt of 128": (decoder, ("fp16", "int4")),
}


def compared(
    make: Callable[[], tuple[nn.Module, Any, list[Any]]], precisions: tuple[str, ...], target: str,
    folder: Path,
) -> Mapping[str, Any]:  # fmt: skip
    torch.manual_seed(0)
    net, example, calibration = make()
    sessions, found = {}, {}
    batch = len(example)
    for precision in precisions:
        started = time.perf_counter()
        artifact = optkit.build(
            net, example, target=target, precision=precision, calibration=calibration, defer=True,
            recipe={"axes": {"batch": {"min": 1, "opt": batch, "max": 8}}},
            out=folder / precision, workspace=Workspace(listener=None),
        )  # fmt: skip
        seconds = time.perf_counter() - started
        (info,) = artifact.manifest.inputs
        feed = {info.name: example.numpy().astype(info.dtype)}
        options = SessionOptions(target=target)
        sessions[precision] = backend("onnxruntime-cuda").session(artifact.model_path, options)
        reference = backend("onnxruntime").session(artifact.model_path, SessionOptions())
        off = {}
        with reference:
            ours = sessions[precision].run(feed)
            for name, value in reference.run(feed).items():
                difference = np.abs(ours[name].astype(np.float64) - value)
                off[name] = float(difference.max() / max(np.abs(value).max(), 1e-9))
        latency = artifact.result.get("latency") or {}
        found[precision] = {
            "build_seconds": round(seconds, 1), "difference_from_cpu": off,
            "predicted_for_tensorrt_ms": latency.get("p50_ms"),
            "evidence_of_the_prediction": latency.get("evidence"),
        }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        for _ in range(10):
            session.run(feed)
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            runs, began = 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                session.run(feed)
                runs += 1
            times[name].append(1e3 * (time.perf_counter() - began) / runs)
    for name, session in sessions.items():
        session.close()
        found[name]["cuda_provider_ms"] = round(median(times[name]), 4)
        found[name]["rounds_ms"] = [round(each, 4) for each in times[name]]
    return {"batch": batch, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True, help="write the results there, as JSON")
    args = parser.parse_args()
    document: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "versions": tool_versions(),
        "evidence": "measured",
        "models": {},
    }
    for name, (make, precisions) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                document["models"][name] = compared(make, precisions, args.target, Path(folder))
            except Exception:  # the other models are worth having
                document["models"][name] = {"failed": traceback.format_exc(limit=-4)}
        print(name, json.dumps(document["models"][name]), flush=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
