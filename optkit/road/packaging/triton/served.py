"""One model of a repository, as it is served on one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from optkit.craft.backends.shape_profile import Profile, profile
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.measurement import Latency
from optkit.facts.tensors import AxisRange, TensorInfo, axes_of, size_of
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import CONFIG, Decoder, read_json
from optkit.road.packaging.triton.batching import Batching, batching
from optkit.road.packaging.triton.executable import Executable, executable
from optkit.road.packaging.triton.model_config import ModelConfig, ModelParameter
from optkit.road.packaging.triton.model_io import ModelIO, axes_of_recipe
from optkit.road.packaging.triton.pbtxt import text
from optkit.road.packaging.variants import Variant
from optkit.show.report.contract import REPORT_FILE

LABELS = "labels.txt"

_CACHE = (
    "the key-value cache goes in and out with every request: send each output present.* as the "
    "input past_key_values.* of the next one"
)


@dataclass(frozen=True)
class ServedModel:
    """`files`: those of the version folder. `beside`: those of the model's folder. `shapes`: of the
    inputs with dynamic axes, as Perf Analyzer takes them. `release`: a release of Triton that runs
    it; None: not known."""

    config: ModelConfig
    comments: Mapping[str, str]
    files: Mapping[str, Path | bytes]
    beside: Mapping[str, bytes] = field(default_factory=dict)
    shapes: tuple[str, ...] = ()
    release: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return text(self.config, self.comments)


def served(name: str, variant: Variant, stem: str) -> ServedModel:
    """The model `name` of an artifact; its files begin with `stem`. Raises UsageError (what Triton
    cannot say, a device on which it does not run), InputRefused, IntegrityError."""
    artifact, where = variant.artifact, str(variant.artifact.model_path)
    model = graph.load(artifact.model_path)
    inputs, outputs = graph.inputs(model), graph.outputs(model)
    axes = axes_of_recipe(artifact.manifest.recipe, str(artifact.path))
    described = ModelIO.of(inputs, outputs, axes, where)
    report = variant.report if REPORT_FILE in artifact.manifest.files else None
    runs = executable(variant, report, model, _profile(inputs, axes), stem)
    sweep = _sweep(variant.result, report)
    batched = batching(sweep, described.tuned, described.max_batch_size, runs.figures)
    labels = _labels(artifact, described)
    config = _config(name, artifact, described, runs, batched)
    if labels is not None:
        config = replace(
            config,
            output=tuple(
                replace(tensor, label_filename=LABELS) if tensor.name == labels.output else tensor
                for tensor in config.output
            ),
        )
    return ServedModel(
        config,
        _comments(described, batched),
        runs.files,
        {} if labels is None else {LABELS: labels.text},
        _shapes(described),
        runs.release,
        (*runs.notes, *_notes(variant, described, batched)),
    )


def _sweep(result: Result, report: Report | None) -> tuple[Latency, ...]:
    """The latency by batch; of a slim copy, which has no report, that of the result alone."""
    if report is not None:
        return report.latencies.engine
    return () if result.latency is None else (result.latency,)


def _profile(inputs: Sequence[TensorInfo], axes: Mapping[str, AxisRange]) -> Profile:
    """The shapes of the inputs with dynamic axes; empty if an axis has no range."""
    dynamic = [info for info in inputs if axes_of(info.shape)]
    if not all(axis in axes for info in dynamic for axis in axes_of(info.shape)):
        return {}
    return profile(dynamic, axes)


def _config(
    name: str, artifact: Artifact, described: ModelIO, runs: Executable, batched: Batching | None
) -> ModelConfig:
    platform, backend = runs.runtime
    manifest = artifact.manifest
    about = {"target": manifest.target, "precision": manifest.precision, "digest": manifest.digest}
    preferred = batched.settings.preferred_batch_size if batched else ()
    return ModelConfig(
        name=name,
        platform=platform,
        backend=backend,
        max_batch_size=described.max_batch_size,
        input=described.inputs,
        output=described.outputs,
        optimization=runs.optimization,
        dynamic_batching=batched.settings if batched else None,
        instance_group=(runs.instance,),
        default_model_filename=runs.main,
        parameters={
            **runs.parameters,
            **{f"optkit.{key}": ModelParameter(value) for key, value in about.items()},
        },
        model_warmup=described.warmup((1, *preferred)),
    )


def _comments(described: ModelIO, batched: Batching | None) -> dict[str, str]:
    comments = {}
    if described.why is not None:
        comments["max_batch_size"] = f"requests are not batched: {described.why}"
    if batched is not None:
        comments["dynamic_batching"] = batched.why
    return comments


def _notes(variant: Variant, described: ModelIO, batched: Batching | None) -> list[str]:
    notes = []
    if described.why is not None:
        notes.append(f"{variant.name}: Triton does not batch requests: {described.why}")
    if batched is not None and not batched.known:
        notes.append(
            f"{variant.name}: the queue delay is 0, because the report does not have the latency "
            "of batch 1 and of the largest preferred batch: Model Analyzer can find a better one"
        )
    manifest = variant.artifact.manifest
    if Decoder.of(manifest.inputs, manifest.outputs) is not None:
        notes.append(_CACHE)
    return notes


def _shapes(described: ModelIO) -> tuple[str, ...]:
    """Perf Analyzer must know the sizes of dynamic axes, other than the batch."""
    first = 1 if described.max_batch_size else 0
    dynamic = [i for i in described.infos if any(isinstance(dim, str) for dim in i.shape[first:])]
    try:
        return tuple(
            f"{info.name}:"
            + ",".join(str(size_of(dim, described.sizes)) for dim in info.shape[first:])
            for info in dynamic
        )
    except KeyError:  # an axis without a range
        return ()


@dataclass(frozen=True)
class _Labels:
    output: str
    text: bytes


def _labels(artifact: Artifact, described: ModelIO) -> _Labels | None:
    """The names of the classes in config.json, for the one output that has a value for each."""
    if CONFIG not in artifact.manifest.files:
        return None
    named = read_json((artifact.path / CONFIG).read_bytes(), CONFIG).get("id2label")
    names = [named.get(str(at)) for at in range(len(named))] if isinstance(named, dict) else []
    fitting = [tensor.name for tensor in described.outputs if tensor.dims == (len(names),)]
    if len(fitting) != 1 or not all(isinstance(name, str) and "\n" not in name for name in names):
        return None
    return _Labels(fitting[0], "".join(f"{name}\n" for name in names).encode("utf-8", "replace"))
