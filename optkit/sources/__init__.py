"""From a model as its owner has it to one ONNX graph of opset ≥ 21.

    python  file.py:factory or package.module:factory, with safetensors weights; or an nn.Module
    pt2     a torch.export archive
    onnx    a graph, converted when its opset is older

Whatever torch exports is compared with torch at two further shapes. Nothing here is optimised: the
graph says what the model says, and making it small and fast is `optkit.fusion`'s work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from optkit.recipe import InputSpec
from optkit.runtime import AxisRange, Progress, Session
from optkit.sources.log import Check, ExportLog

__all__ = ["Check", "ExportLog", "InputSpec", "export"]


def export(
    kind: Literal["python", "pt2", "onnx"],
    inputs: Mapping[str, Path],
    *,
    factory: str | None = None,
    args: Mapping[str, Any] | None = None,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    session: Callable[[Path], Session],
    progress: Progress,
) -> ExportLog:
    """Write the model's graph to `out`.

    `inputs`: "model" for pt2 and onnx, "weights" (optional) for python, whose `factory` takes
    `args`. `session` opens an ONNX file for the comparison. Raises ExportFailed, InputRefused,
    ToolchainMissing or UsageError.
    """
    if kind == "onnx":
        from optkit.sources import onnx_file

        return onnx_file.export(inputs["model"], specs, out)
    if kind == "pt2":
        from optkit.sources import program

        return program.export(inputs["model"], specs, axes, out, session=session, progress=progress)
    from optkit.sources import torch_module

    assert factory is not None
    progress("loading the model", 0.0)
    module = torch_module.load(factory, args or {}, inputs.get("weights"))
    return torch_module.export(module, specs, axes, out, session=session, progress=progress)
