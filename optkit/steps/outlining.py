"""The step that reads a graph for a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from optkit.steps.files import GRAPH, Inputs, Params, Progress

OUTLINE = "outline.json"
SCALES = "scales.safetensors"


def outline(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """What `optkit diff` compares of a graph: its outline, and its scales by number, whose tensors
    the outline names."""
    from safetensors.numpy import save_file

    from optkit import graph

    place = inputs["model"]
    model = graph.load(place / GRAPH if place.is_dir() else place)
    data, scales = graph.outline(graph.infer_shapes(model, strict=False))
    (out / OUTLINE).write_text(json.dumps({**data, "scales": list(scales)}))
    save_file({str(index): one for index, one in enumerate(scales.values())}, out / SCALES)
    return {}
