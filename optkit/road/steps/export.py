from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from optkit.craft.sources.export_log import ExportLog
from optkit.facts.codec import later
from optkit.facts.tensors import AxisRange, InputSpec
from optkit.ground.execute.step import (
    RunsCode,
    Step,
    StepInput,
    always,
    beside_the_key,
    named,
    spread,
)
from optkit.ground.operator_library import OperatorLibrary
from optkit.road.steps.graph import Graph


@dataclass(frozen=True)
class PythonModel:
    """A factory in the user's Python code, and its arguments."""

    axes: Mapping[str, AxisRange]
    factory: str
    args: Mapping[str, object]
    kind: Literal["python"] = always("python")


@dataclass(frozen=True)
class HuggingFaceModel:
    """A staged folder. `part`: "encoder" or "decoder" of a model that has both; `trusted`: the code
    in the folder may run; `versions`: those of the libraries that build the model."""

    axes: Mapping[str, AxisRange]
    task: str | None
    part: str | None
    trusted: bool
    versions: Mapping[str, str | None]
    kind: Literal["hf"] = always("hf")


@dataclass(frozen=True)
class TorchArchive:
    """A staged `.pt2`."""

    axes: Mapping[str, AxisRange]
    kind: Literal["pt2"] = always("pt2")


@dataclass(frozen=True)
class OnnxModel:
    """A staged `.onnx`. The graph has its axes, so other ranges of them need no new export.
    `operators`: the trusted library of those operators that ONNX Runtime lacks; `plugins`: that of
    the same operators for TensorRT."""

    operators: OperatorLibrary | None = None
    plugins: OperatorLibrary | None = later(None)
    kind: Literal["onnx"] = always("onnx")


@dataclass(frozen=True, kw_only=True)
class ExportedGraph(Graph):
    """`log`: the log of the export; None in a rehearsal. `quantized`: another tool has quantized
    the file. `optimized`: the operators that only an optimizer of ONNX Runtime writes → how often;
    `optimized_products`: those that multiply by a weight."""

    log: ExportLog | None = None
    quantized: bool = False
    optimized: Mapping[str, int] = field(default_factory=dict)
    optimized_products: int = 0
    warnings: tuple[str, ...] = always(())

    @property
    def rewritten(self) -> str | None:
        """That an optimizer has rewritten the graph, in words."""
        if not self.optimized:
            return None
        listed = ", ".join(f"{count} {op}" for op, count in self.optimized.items())
        return f"an optimizer of ONNX Runtime has rewritten the graph ({listed})"


@dataclass(frozen=True, kw_only=True)
class Export(RunsCode, Step[ExportedGraph]):
    """A Python factory, a `.pt2`, a Hugging Face folder or an `.onnx` → one graph of opset ≥ 21,
    compared with its source. The other files of a Hugging Face model that users need are copied to
    `assets/`.

    `samples`: a few of the user's, on which both are compared. `file` or `module`, and
    `attribute`: the place of the factory; `code`: the folder from which a module is imported;
    `given_weights`: the path of the weights as the user wrote it.
    """

    name = "export"
    version = 13
    tools = ("torch", "onnxscript", "onnx", "onnx-ir")

    model: StepInput | None = None
    weights: StepInput | None = None
    adapter: StepInput | None = None
    samples: StepInput | None = None
    source: PythonModel | HuggingFaceModel | TorchArchive | OnnxModel = spread()
    specs: tuple[InputSpec, ...] = named("inputs")
    file: Path | None = beside_the_key(None)
    module: str | None = beside_the_key(None)
    attribute: str | None = beside_the_key(None)
    code: Path | None = beside_the_key(None)
    given_weights: str | None = beside_the_key(None, name="weights")

    @property
    def runs_code(self) -> bool:
        return isinstance(self.source, PythonModel)

    @property
    def shares_worker(self) -> bool:
        return isinstance(self.source, OnnxModel)  # the others import torch
