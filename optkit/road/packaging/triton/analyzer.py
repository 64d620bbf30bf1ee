"""model_analyzer.yaml: a quick search of Triton Model Analyzer (docs/config.md of
triton-inference-server/model_analyzer, 1.58) over batch, instances and concurrency."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from optkit.road.packaging.triton.model_config import ModelConfig

FILE = "model_analyzer.yaml"
_HEAD = """\
# model-analyzer profile -f model_analyzer.yaml, in this folder and in the image
# tritonserver:YY.MM-py3-sdk; it starts tritonserver itself.
"""


def text(configs: Sequence[ModelConfig], shapes: Mapping[str, Sequence[str]]) -> bytes:
    """`configs`: of the models to search. `shapes`: name of a model → shapes of its inputs with
    dynamic axes, in Perf Analyzer's form."""
    from ruamel.yaml import YAML

    models = {config.name: _flags(shapes[config.name]) for config in configs}
    batches = [config.max_batch_size for config in configs if config.max_batch_size]
    data: dict[str, object] = {
        "model_repository": ".",
        "run_config_search_mode": "quick",
        # a batch larger than that of the profile cannot run
        **({"run_config_search_max_model_batch_size": min(batches)} if batches else {}),
        "profile_models": models,
    }
    buffer = io.BytesIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(data, buffer)
    return _HEAD.encode() + buffer.getvalue()


def _flags(shapes: Sequence[str]) -> dict[str, object]:
    return {"perf_analyzer_flags": {"shape": list(shapes)}} if shapes else {}
