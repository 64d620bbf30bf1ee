"""Mean average precision of poses (OKS) on pictures annotated as for COCO's keypoints or YOLO.

eval: {task: pose, args: {path: person_keypoints_val2017.json, pictures: val2017, size: 640,
preprocessing: letterbox}}
eval: {task: pose, args: {path: data.yaml, preprocessing: letterbox, size: 640}}
"""

from __future__ import annotations

from optkit.benchmarking.detection import combine, each, slices, weighted
from optkit.benchmarking.pose import drawn, metric, score
from optkit.data.detection import poses as samples

__all__ = ["combine", "drawn", "each", "metric", "samples", "score", "slices", "weighted"]
