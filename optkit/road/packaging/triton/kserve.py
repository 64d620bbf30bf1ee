"""inferenceservice.yaml: a service of KServe for each target (serving.kserve.io/v1beta1).

KServe's own version of Triton is older than the graphs need, so the service names a release.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

from optkit.road.packaging.triton.model_config import GPU
from optkit.road.packaging.triton.served import ServedModel

FILE = "inferenceservice.yaml"
_HEAD = """\
# Copy this folder to a place that KServe reads, and write it instead of pvc://VOLUME/{folder}.
"""
_LONGEST = 63  # of a name in Kubernetes: RFC 1123


def text(name: str, folder: str, models: Mapping[str, Sequence[ServedModel]]) -> bytes:
    """`models`: by target, all models that the service has. `folder`: of the package."""
    from ruamel.yaml import YAML

    buffer = io.BytesIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump_all(
        [_service(name, folder, target, models[target], len(models) > 1) for target in models],
        buffer,
    )
    return _HEAD.format(folder=folder).encode() + buffer.getvalue()


def _service(
    name: str, folder: str, target: str, models: Sequence[ServedModel], several: bool
) -> dict[str, object]:
    title = re.sub("[^a-z0-9-]+", "-", f"{name}-{target}".lower())[:_LONGEST].strip("-")
    releases = [one.release for one in models if one.release is not None]
    gpu = any(group.kind == GPU for one in models for group in one.config.instance_group)
    model: dict[str, object] = {
        "modelFormat": {"name": "triton"},
        "protocolVersion": "v2",
        **({"runtimeVersion": f"{max(releases)}-py3"} if releases else {}),
        "storageUri": f"pvc://VOLUME/{folder}",
        **({"args": [f"--model-config-name={target}"]} if several else {}),
        **({"resources": {"limits": {"nvidia.com/gpu": "1"}}} if gpu else {}),
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": title},
        "spec": {"predictor": {"model": model}},
    }
