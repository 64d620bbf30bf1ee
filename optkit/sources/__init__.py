"""Converts a model in its original form to one ONNX graph of opset ≥ 21.

    python  file.py:factory or package.module:factory, with safetensors weights; or an nn.Module
    pt2     a torch.export archive
    hf      a Hugging Face folder
    onnx    a graph, converted if its opset is older

Every graph that torch exports is compared with torch at two other shapes. Nothing is optimised
here: the graph computes what the model computes, and `optkit.fusion` makes it small and fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from optkit.recipe import InputSpec
from optkit.runtimes import Progress, Session
from optkit.sources import hugging_face, model_factory, onnx_file, program, torch_module
from optkit.sources.log import Check, ExportLog
from optkit.tensors import AxisRange

__all__ = ["Check", "ExportLog", "InputSpec", "export"]


def export(
    kind: Literal["python", "pt2", "onnx", "hf"],
    inputs: Mapping[str, Path],
    *,
    factory: str | None = None,
    args: Mapping[str, object] | None = None,
    task: str | None = None,
    part: str | None = None,
    trusted: bool = False,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    session: Callable[[Path], Session],
    progress: Progress,
) -> ExportLog:
    """Write the graph of the model to `out`.

    inputs: "model" for pt2, onnx and hf (a folder for hf), "weights" (optional) for python, whose
    `factory` takes `args`, "adapter" (optional) for hf, whose `task`, `part` and `trusted` are
    those of `hugging_face.export`. session: opens an ONNX file for the comparison.

    Raises ExportFailed, InputRefused, ToolchainMissing or UsageError.
    """
    if kind == "onnx":
        return onnx_file.export(inputs["model"], specs, out)
    if kind == "pt2":
        return program.export(inputs["model"], specs, axes, out, session=session, progress=progress)
    if kind == "hf":
        return hugging_face.export(
            inputs["model"], specs, axes, out, task=task, part=part, trusted=trusted,
            adapter=inputs.get("adapter"), session=session, progress=progress,
        )  # fmt: skip
    assert factory is not None
    progress("loading the model", 0.0)
    untrained: str | None = None
    if "weights" in inputs:
        module = model_factory.load(factory, args or {}, inputs["weights"])
    else:
        module, untrained = model_factory.load_unweighted(factory, args or {})
    log = torch_module.export(
        module, specs, axes, out, session=session, progress=progress, owned=True
    )
    warnings = (*log.warnings, *([untrained] if untrained else []))
    return replace(log, untrained=untrained, warnings=warnings)
