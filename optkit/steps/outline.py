from __future__ import annotations

from dataclasses import dataclass

from optkit.execute.step import Input, Result, Step

OUTLINE = "outline.json"
SCALES = "scales.safetensors"


@dataclass(frozen=True, kw_only=True)
class Outline(Step[Result]):
    """What two graphs are compared by: nodes, values and scales."""

    name = "outline"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: Input
