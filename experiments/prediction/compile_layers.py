"""The layer lists of compiled engines for rows of `benchmarks.yaml`; writes compiled.json.

    python experiments/prediction/compile_layers.py

ResNet-50 v1.5 and BERT-large with random weights are quantized to INT8 and compiled for the row's
GPU by TensorRT-RTX, which needs no GPU. Weights do not change what a compiler fuses. The lists are
kept as the work that `optkit/craft/prediction/compiled.py` makes of them, so that validate.py
compiles nothing. It takes some minutes and 15 GB of memory.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import rows as r
import torch
import transformers as hf

from optkit.craft.prediction.compiled import of_engine
from optkit.craft.prediction.work import Work
from optkit.ground import graph
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.steps.file_names import GRAPH

MEMORY = 15 << 30  # bytes; smoothing BERT-large takes 12
TOKENS = 178  # mean unpadded length of MLPerf's SQuAD samples, as in workloads.py


class Outputs(torch.nn.Module):
    """A model of transformers whose call returns tensors alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(x, return_dict=False)
        assert isinstance(found, tuple)
        return found


def resnet50() -> tuple[torch.nn.Module, np.ndarray]:
    model = Outputs(hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)))
    return model.eval(), np.random.default_rng(0).normal(size=(8, 3, 224, 224)).astype(np.float32)


def bert_large() -> tuple[torch.nn.Module, np.ndarray]:
    config = hf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, size=(8, TOKENS))
    return Outputs(hf.BertForQuestionAnswering(config)).eval(), tokens


MODELS = {"resnet50": resnet50, "bert-large": bert_large}


def main() -> int:
    wanted: dict[tuple[str, str, int], list[int]] = {}
    for row in r.load()[0]:
        name = next((name for name in MODELS if row.model.startswith(name)), None)
        if name is not None and row.gpu == "l4" and row.precision == "int8":
            wanted.setdefault((name, row.gpu, int(row.batch or 1)), []).append(row.number)
    found = []
    for name in MODELS:
        torch.manual_seed(0)
        model, samples = MODELS[name]()
        for (of, gpu, batch), numbers in wanted.items():
            if of == name:
                print(name, gpu, batch, flush=True)
                found += [{"rows": numbers, **compiled(name, model, samples, gpu, batch)}]
    (r.FOLDER / "compiled.json").write_text(_text(found), encoding="utf-8")
    return 0


def _text(engines: list[dict[str, Any]]) -> str:
    """JSON with a line for each kernel."""
    found = []
    for engine in engines:
        head = json.dumps({key: value for key, value in engine.items() if key != "works"})
        works = ",\n  ".join(map(json.dumps, engine["works"]))
        found.append(f'{head[:-1]}, "works": [\n  {works}\n ]}}')
    return "[\n " + ",\n ".join(found) + "\n]\n"


def compiled(
    name: str, model: torch.nn.Module, samples: np.ndarray, gpu: str, batch: int
) -> dict[str, Any]:
    """The work of the engine's layers at this batch."""
    runner = Workspace(memory=MEMORY).runner()
    example = torch.from_numpy(samples[:1])
    job = jobs.job_of(
        model, (example,), jobs.pair(gpu, "int8"), calibration=[(samples,)], name=name,
        recipe={"axes": {"batch": {"min": 1, "opt": batch, "max": max(batch, 2)}}}, runner=runner,
    )  # fmt: skip
    build = pipeline.run(job, runner, pipeline.COMPILE)
    assert build.engine is not None
    fused = build.engine.engine
    axes = {axis: span.opt for axis, span in build.job.recipe.axis_ranges().items()}
    costs = graph.costs(graph.load(build.graph.path / GRAPH), axes)
    works = [_written(*one) for one in Counter(of_engine(fused.static_layers, costs)).items()]
    versions = {tool: pipeline.tool_versions()[tool] for tool in ("optkit", "tensorrt-rtx")}
    return {"model": name, "gpu": gpu, "batch": batch, "versions": versions, "works": works}


def _written(work: Work, times: int) -> dict[str, Any]:
    """What differs from the defaults; equal kernels once."""
    bare = Work(work.kind, work.dtype)
    given = asdict(replace(work, times=times))
    return {key: value for key, value in given.items()
            if key in ("kind", "dtype") or value != getattr(bare, key)}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
