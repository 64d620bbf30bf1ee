"""A family on its way through optkit, and what is said of it.

A cell is what a column came to: a value, or why it failed; a cell without both does not apply to
the family. A family whose export is refused has no cells, but the words of the refusal.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from optkit.craft.sources.hugging_face import (
    causal_lm,
    encoder_decoder,
    inputs,
    linear_recurrences,
    loading,
)
from optkit.facts.codec import from_json
from optkit.facts.errors import OptkitError
from optkit.facts.request import Request
from optkit.facts.tensors import AxisRange, Feed, InputSpec
from optkit.ground.data.synthetic import random_feed
from optkit.ground.execute.task import Executor
from optkit.ground.recipe import Recipe
from optkit.ground.runtimes import Session, SessionOptions, backend
from optkit.ground.workspace import Workspace
from optkit.road import jobs
from optkit.verbs import api
from tests.matrix import families
from tests.plain_tools import accepted

LIMIT = 1e-4
"""Of a difference in float32, as a share of the largest value of the output."""
LEAST_SQNR = {"fp16": 40.0, "int8": 10.0}
"""dB against FP32: below, an output is no longer the model's."""
LOADED = ("fp32", "int8")
"""Precisions whose graphs plain ONNX Runtime must load, and not only the checker."""
SAMPLES = Path(__file__).with_name("samples.py")

Sizes = dict[str, int]


@dataclass(frozen=True)
class Cell:
    """`value`: a figure, or in words, None if the column does not apply; `reason`: of a failed
    cell, the message of its error."""

    ok: bool
    value: str | float | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Refusal:
    """What optkit says of a family that it does not export, the remedy, and the exit code of the
    command line."""

    code: str
    reason: str
    remedy: str
    exit_code: int


class Missed(Exception):
    """A limit of the matrix does not hold."""


class Row:
    """A family, or one part of an encoder-decoder, on its way through optkit."""

    def __init__(self, name: str, scratch: Path, executor: Executor | None = None) -> None:
        family, _, part = name.partition("/")
        self.name, self.family, self.part, self.scratch = name, family, part or None, scratch
        self.folder = families.write(family, scratch / family)
        self.workspace = Workspace(scratch / "cache", executor=executor, listener=None)
        self._recipe = self._read(family)

    def refusal(self) -> Refusal | None:
        """Why optkit does not export the family; None if it does."""
        try:
            _ = self.exported
        except OptkitError as error:
            assert error.hint, f"{self.name} is refused without a remedy: {error}"
            return Refusal(error.code, self.told(error.line), error.hint, error.exit_code)
        return None

    def part_beside(self, part: str) -> Row:
        """Another part of the same family."""
        return Row(f"{self.family}/{part}", self.scratch, self.workspace.executor)

    def files(self, stage: str, **how: str) -> tuple[Path, dict[str, Any]]:
        """The folder of what `optkit STAGE` makes, and its details. Plain tools accept its
        graphs."""
        out = self.scratch / "-".join(filter(None, [self.part, stage, *how.values()]))
        shutil.rmtree(out, ignore_errors=True)
        made = api.stage_files(stage, recipe=self._recipe, out=out, workspace=self.workspace, **how)
        for path in out.rglob("*.onnx"):
            assert accepted(path) or how["precision"] not in LOADED, f"{path} is only checked"
        return out, made.details

    def sqnr(self, **how: str) -> float:
        """dB of `optkit eval` against FP32. Raises Missed where it is too low."""
        found = api.evaluate(recipe=self._recipe, workspace=self.workspace, **how)
        sqnr = round(float(found["fidelity"]["sqnr_db"]), 1)
        if sqnr < LEAST_SQNR[how["precision"]]:
            raise Missed(f"{sqnr} dB against FP32")
        return sqnr

    @property
    def generates(self) -> bool:
        """Whether it is a language model, or the decoder of one."""
        group = families.FAMILIES[self.family]
        return (group.paired and self.part == "decoder") or (
            self.family in families.GROUPS["Decoders"]
        )

    @cached_property
    def exported(self) -> Exported:
        out, details = self.files("export", target="cpu", precision="fp32")
        log = details["log"]
        return Exported(
            out / "model.onnx", log["nodes"], from_json(tuple[InputSpec, ...], log["specs"]),
            from_json(dict[str, AxisRange], log["axes"]),
        )  # fmt: skip

    def torch_outputs(self, feed: Feed) -> Feed:
        """What transformers computes in the same precision; a state of Mamba goes on in it."""
        with torch.no_grad(), linear_recurrences.scanned(self._model):
            found = self._model(*(torch.from_numpy(array) for array in feed.values()))
        return {name: tensor.numpy() for name, tensor in found.items()}

    def transformers_model(self) -> Any:
        """The model as transformers loads it, with its own forward."""
        return loading.load(self.folder, None, trusted=False).model

    @cached_property
    def _model(self) -> Any:
        """The model as the export describes it: tensors in, tensors by name out."""
        loaded = loading.load(self.folder, None, trusted=False)
        if self.part is not None:
            encoder_decoder.describe(loaded.model, self.part)
        elif self.generates:
            causal_lm.describe(loaded.model)
        else:
            inputs.describe(loaded.model, self.folder)
        return loaded.model

    def _read(self, family: str) -> Recipe:
        request = Request(
            str(self.folder), {"name": family}, calibration=f"{SAMPLES}:samples",
            overrides=(f"model.part={self.part}",) if self.part else (),
        )  # fmt: skip
        return jobs.resolve(request, workspace=self.workspace)

    def told(self, message: str) -> str:
        """Without what differs from run to run."""
        told = re.sub(r"0x[0-9a-f]+", "0x…", message.replace(str(self.scratch), "…"))
        return re.sub(r"/\S*site-packages/", "", told)


@dataclass(frozen=True)
class Exported:
    """The graph, and what it takes by its own account."""

    path: Path
    nodes: int
    specs: tuple[InputSpec, ...]
    axes: Mapping[str, AxisRange]

    @property
    def tuned(self) -> Sizes:
        return {name: axis.opt for name, axis in self.axes.items()}

    @property
    def places(self) -> tuple[Sizes, Sizes, Sizes]:
        """The lower and the upper end of every axis, and one size in between."""
        low = {name: axis.min for name, axis in self.axes.items()}
        high = {name: axis.max for name, axis in self.axes.items()}
        return low, {name: (low[name] + high[name]) // 2 for name in low}, high

    def feed(self, sizes: Sizes) -> Feed:
        return random_feed(self.specs, sizes, seed=sum(sizes.values()))


def apart(expected: Feed, found: Feed, sizes: Sizes) -> float:
    """The largest share by which an output differs. Raises Missed where that is too much."""
    assert expected.keys() == found.keys()
    worst = 0.0
    for name, a in expected.items():
        b = found[name]
        if a.shape != b.shape:
            raise Missed(f"{name} is {list(b.shape)} and not {list(a.shape)} at {sizes}")
        scale = np.abs(a).max(initial=0.0)
        apart = np.abs(a - b).max(initial=0.0) / scale if scale else float(np.any(b))
        if not apart <= LIMIT:
            raise Missed(f"{name} differs by {apart:.1e} at {sizes}")
        worst = max(worst, float(apart))
    return worst


def session(path: Path, level: str = "all") -> Session:
    return backend("onnxruntime").session(path, SessionOptions(threads=1, level=level))
