"""What is asked of every family: the columns of the matrix.

A cell is what a column came to: a value, or why it failed. What a typed error or a limit here turns
down is a failed cell; any other exception is a bug, and not caught.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from optkit import api, graph
from optkit.codec import from_json
from optkit.data.synthetic import random_feed
from optkit.errors import OptkitError
from optkit.recipe import Recipe
from optkit.request import Request
from optkit.runtimes import Session, SessionOptions, backend
from optkit.sources.hugging_face import decoder, encoder_decoder, inputs, loading
from optkit.tensors import AxisRange, Feed, InputSpec
from optkit.workspace import Workspace
from tests.matrix import families

LIMIT = 1e-4
"""Of a difference in float32, as a share of the largest value of the output."""
LEAST_SQNR = {"fp16": 40.0, "int8": 10.0}
"""dB against FP32: below, an output is no longer the model's."""
GPU = "rtx4090"  # SM89
SAMPLES = Path(__file__).with_name("samples.py")

Sizes = dict[str, int]


@dataclass(frozen=True)
class Cell:
    """`value`: a figure, or in words; `reason`: of a failed cell, the message of its error."""

    ok: bool
    value: str | float | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Missed(Exception):
    """A limit of the matrix does not hold."""


class Row:
    """A family, or one part of an encoder-decoder, on its way through optkit."""

    def __init__(self, name: str, scratch: Path) -> None:
        family, _, part = name.partition("/")
        self.name, self.part, self.scratch = name, part or None, scratch
        self.folder = families.write(family, scratch / family)
        self._workspace = Workspace(scratch / "cache")
        self._recipe = self._read(family)

    def cells(self) -> dict[str, Cell]:
        return {column: self.cell(column) for column in COLUMNS}

    def cell(self, column: str) -> Cell:
        try:
            return Cell(True, COLUMNS[column](self))
        except OptkitError as error:
            return Cell(False, reason=self._told(f"{error.code}: {error}"))
        except Missed as missed:
            return Cell(False, reason=str(missed))

    def files(self, stage: str, **how: str) -> tuple[Path, dict[str, Any]]:
        """The folder of what `optkit STAGE` makes, and its details."""
        out = self.scratch / "-".join([stage, *how.values()])
        shutil.rmtree(out, ignore_errors=True)
        made = api.stage_files(
            stage, recipe=self._recipe, out=out, workspace=self._workspace, **how
        )
        return out, made.details

    def sqnr(self, **how: str) -> float:
        """dB of `optkit eval` against FP32. Raises Missed where it is too low."""
        found = api.evaluate(recipe=self._recipe, workspace=self._workspace, **how)
        sqnr = round(float(found["fidelity"]["sqnr_db"]), 1)
        if sqnr < LEAST_SQNR[how["precision"]]:
            raise Missed(f"{sqnr} dB against FP32")
        return sqnr

    @cached_property
    def exported(self) -> Exported:
        out, details = self.files("export", target="cpu", precision="fp32")
        log = details["log"]
        return Exported(
            out / "model.onnx", log["nodes"], from_json(tuple[InputSpec, ...], log["specs"]),
            from_json(dict[str, AxisRange], log["axes"]),
        )  # fmt: skip

    def torch_outputs(self, feed: Feed) -> Feed:
        """What transformers computes in the same precision."""
        with torch.no_grad():
            found = self._model(*(torch.from_numpy(array) for array in feed.values()))
        return {name: tensor.numpy() for name, tensor in found.items()}

    @cached_property
    def _model(self) -> Any:
        """The model as the export describes it: tensors in, tensors by name out."""
        loaded = loading.load(self.folder, None, trusted=False)
        if self.part is not None:
            encoder_decoder.describe(loaded.model, self.part)
        elif loaded.task == loading.GENERATION:
            decoder.describe(loaded.model)
        else:
            inputs.describe(loaded.model, self.folder)
        return loaded.model

    def _read(self, family: str) -> Recipe:
        request = Request(
            str(self.folder), {"name": family}, calibration=f"{SAMPLES}:samples",
            overrides=(f"model.part={self.part}",) if self.part else (),
        )  # fmt: skip
        return api.resolve(request, workspace=self._workspace)

    def _told(self, message: str) -> str:
        """Without what differs from run to run."""
        return re.sub(r"0x[0-9a-f]+", "0x…", message.replace(str(self.scratch), "…"))


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


def exports(row: Row) -> str:
    return f"{row.exported.nodes} nodes"


def equals_torch(row: Row) -> str:
    return f"{_against_torch(row, [row.exported.tuned]):.0e}"


def axes_hold(row: Row) -> str:
    return f"{_against_torch(row, row.exported.places):.0e}"


def fused_forms(row: Row) -> str:
    """Nodes as exported, in the `standard` form and in that for ONNX Runtime, which agree."""
    exported = row.exported
    nodes = [exported.nodes]
    for stage in ("fuse", "quantize"):  # to FP32: only written in ONNX Runtime's operators
        path = row.files(stage, target="cpu", precision="fp32")[0] / "model.onnx"
        nodes.append(len(graph.load(path).graph))
        with _session(exported.path, "none") as plain, _session(path) as fused:
            for sizes in exported.places:
                feed = exported.feed(sizes)
                apart(plain.run(feed), fused.run(feed), sizes)
    return " → ".join(map(str, nodes))


def fp16(row: Row) -> float:
    return row.sqnr(target=GPU, precision="fp16")


def int8(row: Row) -> float:
    return row.sqnr(target="cpu", precision="int8")


def tensorrt(row: Row) -> str:
    _, details = row.files("compile", target=GPU, precision="int8")
    found = details["engine"]["landing"]
    if not found["planned"]:
        raise Missed("no product is planned in INT8")
    if found["landed"] < found["planned"]:
        missing = [f"{one['node']} ({one['dtype']})" for one in found["rows"] if not one["landed"]]
        raise Missed(
            f"{found['landed']} of {found['planned']} products landed, not {', '.join(missing)}"
        )
    return f"{found['landed']}/{found['planned']}"


COLUMNS: dict[str, Callable[[Row], str | float]] = {
    "exports": exports,
    "equals torch": equals_torch,
    "axes hold": axes_hold,
    "fused forms agree": fused_forms,
    "FP16": fp16,
    "INT8": int8,
    "TensorRT-RTX": tensorrt,
}
REQUIRED = ("exports", "equals torch", "axes hold")
ROWS = tuple(
    f"{name}/{part}" if part else name
    for name in families.FAMILIES
    for part in (families.PARTS if name in families.ENCODER_DECODERS else ("",))
)


def _against_torch(row: Row, places: Iterable[Sizes]) -> float:
    """The largest share by which the graph's outputs differ. Raises Missed."""
    worst = 0.0
    with _session(row.exported.path) as session:
        for sizes in places:
            feed = row.exported.feed(sizes)
            worst = max(worst, apart(row.torch_outputs(feed), session.run(feed), sizes))
    return worst


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


def _session(path: Path, level: str = "all") -> Session:
    return backend("onnxruntime").session(path, SessionOptions(threads=1, level=level))
