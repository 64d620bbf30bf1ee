from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from optkit import graph
from optkit.execute.step import Progress, Result
from optkit.steps.files import GRAPH
from optkit.steps.outline import OUTLINE, SCALES, Outline


def run(step: Outline, out: Path, progress: Progress) -> Result:
    """The outline, and the scales by number, whose tensors the outline names."""
    place = step.model.path
    model = graph.load(place / GRAPH if place.is_dir() else place)
    data, scales = graph.outline(graph.infer_shapes(model, strict=False))
    (out / OUTLINE).write_text(json.dumps({**data, "scales": list(scales)}))
    save_file({str(index): one for index, one in enumerate(scales.values())}, out / SCALES)
    return Result()
