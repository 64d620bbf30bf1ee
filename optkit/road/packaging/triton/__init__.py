"""The format `triton`: a model repository of Triton Inference Server.

NAME/config.pbtxt           the configuration, in protobuf's text form
NAME/configs/TARGET.pbtxt   of a fleet: one per target, for tritonserver --model-config-name=TARGET
NAME/1/model.onnx           the graph, or model.plan, an engine; of a fleet: TARGET.onnx, …
NAME/labels.txt             the names of the classes, if config.json has them
NAME-encoder, NAME-decoder  of an encoder-decoder: a model for each, and NAME is an ensemble
model_analyzer.yaml         a quick search of Triton Model Analyzer
inferenceservice.yaml       a service of KServe for each target

Triton reads only the folders of the repository, so other files may lie beside them.

model_config  the messages of a configuration
pbtxt         writes a message in protobuf's text form
model_io      inputs and outputs in Triton's words, and whether requests can be batched
batching      preferred batches and queue delay, from the batch sweep
executable    what runs: an engine or the graph
releases      which versions each release of Triton has
ensemble      the ensemble of an encoder-decoder
analyzer      model_analyzer.yaml
kserve        inferenceservice.yaml
served        one model of the repository
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from optkit.facts.errors import UsageError
from optkit.ground.devices import target
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.triton import analyzer, kserve
from optkit.road.packaging.triton.ensemble import DECODER, ENCODER, ensemble
from optkit.road.packaging.triton.model_config import ModelConfig
from optkit.road.packaging.triton.pbtxt import text
from optkit.road.packaging.triton.served import ServedModel, served
from optkit.road.packaging.variants import PackageSubject

CONFIG = "config.pbtxt"
_CONFIGS = "configs"
_MODEL = "model"
_VERSION = "1"

_CHOICE = (
    "choose the target with tritonserver --model-config-name=TARGET; without it, the configuration "
    "of {} is used"
)
_FIRST_TOKENS = (
    "{0} runs the encoder and the decoder for the first tokens; send each further token to "
    "{0}-decoder, with the outputs present.* as its inputs past_key_values.*"
)
_EMPTY_VERSION = b"An ensemble has no file of its own; Triton needs this folder.\n"


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (what Triton cannot say; a device on which it does not run), InputRefused,
    IntegrityError."""
    parts = _parts(subject)
    models = {_name(subject.name, part): _model(subject, part) for part in parts}
    content: dict[str, Path | bytes] = {}
    for name, by_target in models.items():
        content |= _served(name, by_target)
    whole = _ensembles(subject.name, models) if ENCODER in parts else {}
    if whole:
        content |= _folder(subject.name, {key: text(one, {}) for key, one in whole.items()})
        content[f"{subject.name}/{_VERSION}/README"] = _EMPTY_VERSION
    chosen = [by_target[_default(by_target)] for by_target in models.values()]
    content[analyzer.FILE] = analyzer.text(
        [one.config for one in chosen], {one.config.name: one.shapes for one in chosen}
    )
    content[kserve.FILE] = kserve.text(
        subject.name,
        f"{subject.name}-triton",
        {v.name: [by_target[v.name] for by_target in models.values()] for v in subject.variants},
    )
    return PackageContent(content, _notes(subject, models, ensemble=bool(whole)))


def _served(name: str, by_target: Mapping[str, ServedModel]) -> dict[str, Path | bytes]:
    """The files of one model of the repository."""
    content: dict[str, Path | bytes] = {
        **_folder(name, {key: one.text for key, one in by_target.items()})
    }
    for one in by_target.values():
        content |= {f"{name}/{_VERSION}/{file}": data for file, data in one.files.items()}
        content |= {f"{name}/{file}": data for file, data in one.beside.items()}
    return content


def _notes(
    subject: PackageSubject, models: Mapping[str, Mapping[str, ServedModel]], *, ensemble: bool
) -> tuple[str, ...]:
    notes = [n for by_target in models.values() for one in by_target.values() for n in one.notes]
    if ensemble:
        notes.insert(0, _FIRST_TOKENS.format(subject.name))
    if len(subject.variants) > 1:
        notes.insert(0, _CHOICE.format(_default(next(iter(models.values())))))
    return tuple(dict.fromkeys(notes))


def _model(subject: PackageSubject, part: str | None) -> dict[str, ServedModel]:
    """The model, or one part of it, on each target."""
    name = _name(subject.name, part)
    return {
        variant.name: served(
            name,
            variant if part is None else variant.parts[part],
            _MODEL if len(subject.variants) == 1 else variant.name,
        )
        for variant in subject.variants
    }


def _folder(name: str, configs: Mapping[str, str]) -> dict[str, bytes]:
    """The configurations of a model. `configs`: by target."""
    if len(configs) == 1:
        return {f"{name}/{CONFIG}": each.encode() for each in configs.values()}
    chosen = {f"{name}/{_CONFIGS}/{key}.pbtxt": each.encode() for key, each in configs.items()}
    return {f"{name}/{CONFIG}": configs[_default(configs)].encode(), **chosen}


def _ensembles(
    name: str, models: Mapping[str, Mapping[str, ServedModel]]
) -> dict[str, ModelConfig]:
    encoder, decoder = (models[_name(name, part)] for part in (ENCODER, DECODER))
    return {key: ensemble(name, one.config, decoder[key].config) for key, one in encoder.items()}


def _parts(subject: PackageSubject) -> tuple[str | None, ...]:
    """The graphs of which each artifact consists; (None,): of one."""
    first, *others = (tuple(variant.parts) for variant in subject.variants)
    if any(other != first for other in others):
        raise UsageError("its artifacts consist of different graphs", where=subject.name)
    if first and set(first) != {ENCODER, DECODER}:
        raise UsageError(
            f"it consists of {' and '.join(first)}, and Triton's ensemble is only made of an "
            "encoder and a decoder",
            where=subject.name,
            hint="package one of its parts: each is an artifact in a folder of that name",
        )
    return (ENCODER, DECODER) if first else (None,)


def _name(name: str, part: str | None) -> str:
    return name if part is None else f"{name}-{part}"


def _default(targets: Iterable[str]) -> str:
    """The target of config.pbtxt: a CPU, which every server has; otherwise the first one."""
    names = list(targets)
    return next((name for name in names if target(name).is_cpu), names[0])
