"""Mean average precision of a detector on pictures annotated as for COCO or YOLO.

eval: {task: detection, args: {path: data.yaml, preprocessing: letterbox, size: 640}}
eval: {task: detection, args: {path: instances_val2017.json, pictures: val2017, head: rt_detr}}
"""

from __future__ import annotations

from optkit.benchmarking.detection import combine, drawn, each, metric, score, slices, weighted
from optkit.data.detection import samples

__all__ = ["combine", "drawn", "each", "metric", "samples", "score", "slices", "weighted"]
