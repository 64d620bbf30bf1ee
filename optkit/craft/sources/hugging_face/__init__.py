"""Converts a Hugging Face folder to one ONNX graph, with the class and weights that its config.json
names.

    loading   the folder → the model, with a check of every weight
    inputs    the model → its inputs and axes, which no recipe has to declare
    adapter   LoRA weights, merged into those of the model
    causal_lm  a causal language model with its cache as inputs and outputs
    encoder_decoder   one of its two graphs

The intake has copied the folder: it has safetensors and JSON, and code only if that may run. The
model itself is traced and compared, so nodes and weights have the names of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from optkit.craft.sources import torch_module
from optkit.craft.sources.export_log import ExportLog
from optkit.craft.sources.hugging_face import (
    block_attention,
    causal_lm,
    encoder_decoder,
    inputs,
    linear_recurrences,
    loading,
)
from optkit.craft.sources.hugging_face.adapter import merge
from optkit.craft.sources.hugging_face.inputs import ModelInputs
from optkit.craft.sources.hugging_face.loading import LoadedModel
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import AxisRange, InputSpec
from optkit.ground.runtimes import Progress, Session


def export(
    folder: Path,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    *,
    task: str | None,
    part: str | None,
    trusted: bool,
    adapter: Path | None = None,
    session: Callable[[Path], Session],
    progress: Progress,
) -> ExportLog:
    """Write the graph of the model in `folder` to `out`; the log has its inputs and axes.

    specs, axes: differences from the model's own inputs, e.g. another image size, or an axis of one
    size. task: by default that of the class in config.json. part: one of the two graphs of an
    encoder-decoder. trusted: the Python code of the folder may run. adapter: the copied folder of a
    LoRA adapter to merge.

    Raises InputRefused, ExportFailed, UsageError or ToolchainMissing.
    """
    progress("loading the model", 0.0)
    loaded = loading.load(folder, task, trusted=trusted)
    block_attention.pad_inside(loaded.model)
    described = _described(loaded, folder, part, specs).overridden(specs, axes)
    if adapter is not None:
        progress("merging the adapter", 0.05)
        merge(loaded.model, described, adapter)
    with linear_recurrences.scanned(loaded.model):
        log = torch_module.export(
            loaded.model,
            described.specs,
            described.traced,
            out,
            session=session,
            progress=progress,
            owned=True,
            compared=described.axes,
        )
    return replace(
        log,
        source="hf",
        task=loaded.task,
        specs=described.specs,
        axes=described.axes,
        positions=described.positions,
        warnings=(*loaded.warnings, *described.warnings, *log.warnings),
    )


def _described(
    loaded: LoadedModel, folder: Path, part: str | None, declared: Sequence[InputSpec]
) -> ModelInputs:
    """The inputs of the graph, of which a recipe has `declared` some. It also replaces
    the model's forward by that of the graph."""
    # DETR, or BART with a classification head: one call computes everything
    paired = getattr(loaded.model.config, "is_encoder_decoder", False) and (
        loaded.model.can_generate()
    )
    if paired != (part is not None):
        kind = loaded.model.config.model_type
        raise InputRefused(
            f"{kind} is two graphs, encoder and decoder" if paired else f"{kind} has no parts",
            where=str(folder),
            hint="`optkit build` makes both; for one of them: --set model.part=decoder"
            if paired
            else "leave out model.part",
        )
    if part is not None:
        return encoder_decoder.describe(loaded.model, part)
    if loaded.task == loading.GENERATION:
        return causal_lm.describe(loaded.model)
    return inputs.describe(loaded.model, folder, declared)
