"""The format `huggingface`: a model repository as the hub, optimum and transformers.js read it.

README.md                  the card: the base model, every figure with its evidence, how to load
config.json, tokenizer …   at the root, as the model's own repository has them
onnx/model_quantized.onnx  one graph per precision, with transformers.js' suffix for it
onnx/….onnx_data           weights beside it, if the graph has them in another file

card   the text of README.md
names  the name of a graph, and the keys that transformers.js reads in config.json
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit.facts.errors import UsageError
from optkit.ground import graph
from optkit.ground.artifact import MODEL, VNNI
from optkit.ground.decoder import CONFIG, Decoder
from optkit.ground.intake import COMPANIONS
from optkit.road.packaging import model_card
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.graph_files import graph_files
from optkit.road.packaging.huggingface import card, names
from optkit.road.packaging.huggingface.card import ListedGraph
from optkit.road.packaging.variants import PackageSubject, Variant

FOLDER = "onnx"
CARD = "README.md"


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (two artifacts for one file name, an encoder-decoder, a cache of codes),
    InputRefused, IntegrityError."""
    listed = _listed(subject)
    companions = _companions(subject)
    content: dict[str, Path | bytes] = {**companions}
    parts: dict[str, int] = {}
    for one in listed:
        graphs = _graph(one.variant, one.file)
        parts[one.file] = len(graphs) - 1
        content |= {f"{FOLDER}/{name}": data for name, data in graphs.items()}
    keys = names.keys_of_transformers_js(listed, parts)
    if CONFIG in companions and keys:
        content[CONFIG] = names.with_keys(companions[CONFIG].read_bytes(), keys)
    content[CARD] = card.text(subject, listed, companions).encode("utf-8", "replace")
    return PackageContent(content, _notes(subject, listed, companions, parts))


def _listed(subject: PackageSubject) -> list[ListedGraph]:
    """The artifacts with the names of their graphs, in the order of these names."""
    by_file: dict[str, ListedGraph] = {}
    for variant in subject.variants:
        _refuse_encoder_decoder(variant)
        _refuse_codes(variant)
        manifest = variant.artifact.manifest
        name = names.name_of(manifest.precision, manifest.target)
        file = f"model{name.suffix}.onnx"
        if (other := by_file.get(file)) is not None:
            both = " and ".join(one.artifact.name for one in (other.variant, variant))
            raise UsageError(
                f"{both} both need the file name {FOLDER}/{file}",
                where=subject.name,
                hint="a repository has one file per precision: name the folder of one artifact, "
                "or choose with --precision",
            )
        by_file[file] = ListedGraph(variant, file, name.dtype)
    return [by_file[file] for file in sorted(by_file)]


def _refuse_encoder_decoder(variant: Variant) -> None:
    manifest = variant.artifact.manifest
    tensors = (*manifest.inputs, *manifest.outputs)
    if any(names.CROSSED.fullmatch(info.name) for info in tensors):
        raise UsageError(
            "the hub's encoder_model.onnx and decoder_model_merged.onnx pass hidden states between "
            "them, but the graphs of this encoder-decoder pass keys and values",
            where=str(variant.artifact.path),
            hint="run it with `optkit generate`",
        )


def _refuse_codes(variant: Variant) -> None:
    manifest = variant.artifact.manifest
    decoder = Decoder.of(manifest.inputs, manifest.outputs)
    if decoder is not None and decoder.codes is not None:
        raise UsageError(
            f"optimum and transformers.js feed the key-value cache as floats, but this graph has "
            f"it in {decoder.codes}",
            where=str(variant.artifact.path),
            hint="build it with `--set quantization.kv_cache=null` for this format, or run it with "
            "`optkit generate`",
        )


def _companions(subject: PackageSubject) -> dict[str, Path]:
    """Configuration, tokenizer and processor; the artifacts of one model have the same ones."""
    first, *others = (variant.artifact for variant in subject.variants)
    wanted = {name: first.manifest.files.get(name) for name in COMPANIONS}
    for other in others:
        differing = [n for n in COMPANIONS if other.manifest.files.get(n) != wanted[n]]
        if differing:
            raise UsageError(
                f"{first.name} and {other.name} have different files {', '.join(differing)}",
                where=subject.name,
                hint="name the folder of one artifact",
            )
    return {name: first.path / name for name, file in wanted.items() if file is not None}


def _graph(variant: Variant, file: str) -> dict[str, Path | bytes]:
    """The graph and its data files under the names of the hub."""
    artifact = variant.artifact
    locations = [name for name in graph_files(artifact) if name != MODEL]
    if not locations:
        return {file: artifact.path / MODEL}
    renamed = {old: names.data_file(file, part) for part, old in enumerate(locations)}
    data = {new: artifact.path / old for old, new in renamed.items()}
    return {file: graph.with_data_at(artifact.model_path, renamed), **data}


def _notes(
    subject: PackageSubject,
    listed: list[ListedGraph],
    companions: Mapping[str, Path],
    parts: Mapping[str, int],
) -> tuple[str, ...]:
    notes = ["the licence is unknown: add `license:` to README.md before you publish the model"]
    if model_card.base_model(subject) is None:
        notes.append(
            "the base model is unknown, because the model was not read from the hub: add "
            "`base_model:` to README.md"
        )
    if CONFIG not in companions:
        notes.append(
            "there is no config.json: ONNX Runtime runs the graphs, optimum and "
            "transformers.js cannot load them"
        )
    for one in listed:
        manifest = one.variant.artifact.manifest
        if one.dtype is None:
            notes.append(f"transformers.js has no dtype for {one.file} ({manifest.precision})")
        if manifest.compiled:
            notes.append(
                f"the figures of {one.file} are those of the {manifest.target} engine, "
                "which this format does not hold"
            )
        if manifest.instruction_set == VNNI:
            notes.append(
                f"{one.file} is for CPUs with VNNI: on other x86 CPUs set "
                "session.x64quantprecision to 1"
            )
        if parts[one.file] and CONFIG not in companions:
            notes.append(f"{one.file} needs the {names.DATA} files beside it")
    return tuple(notes)
