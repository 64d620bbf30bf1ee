"""The artifact: the files of a build and its figures, in one folder that needs no other file.

model.onnx (+ data)     the graph that was compiled      simulation.onnx  the same in FP32 nodes,
                                                         rounded (`precision_cast.simulation`)
<backend>.engine        the engine, if there is one      baseline/        the baseline's files,
                                                         unless they are the same
report.json/.html/.md   all figures with their evidence  recipe.yaml      a record, never executed
eval.safetensors        evaluation samples, if they were asked for, so that another host can
                        measure accuracy
config.json, tokenizer  and the other files of a Hugging Face folder, without its weights
operators/              the library of the graph's own operators, if it has some
kv_cache.json           how far the cache of a decoder reaches, if the recipe asks for FP8
genai_config.json       of a decoder for ONNX Runtime, so that GenAI can load the folder
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from optkit.craft.sources.export_log import OnnxOrigin
from optkit.facts.documents.result import Result as BuildResult
from optkit.ground.artifact import (
    BASELINE,
    MANIFEST,
    OPERATORS,
    PLUGINS,
    SAMPLES,
    Artifact,
    EngineFile,
    Manifest,
    write,
)
from optkit.ground.data.spool import Spool
from optkit.ground.decoder import KV_CACHE, Decoder
from optkit.ground.execute.step import StepResult
from optkit.ground.operator_library import OperatorLibrary
from optkit.ground.runtimes import backend
from optkit.ground.store import (
    CACHE_OPTION,
    OUT_OPTION,
    Store,
    digest_json,
    fsync_dir,
    fsync_tree,
    make_folder,
    storage_errors,
)
from optkit.road import pipeline
from optkit.road.packaging import genai
from optkit.road.packaging.preprocessing_metadata import PREPROCESSING, preprocessing
from optkit.road.packaging.stamp import stamp
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.judged_build import JudgedBuild
from optkit.road.pipeline.recorded_samples import record_of
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.file_names import ASSETS, GRAPH, SIMULATION
from optkit.road.steps.graph import Graph
from optkit.road.steps.ort import OrtGraph
from optkit.show.report.build_page import to_html
from optkit.show.report.markdown import to_markdown

_DETAILS = "details.json"
_BASELINE = f"{BASELINE}/"
_OPTKIT = importlib.metadata.version("optkit")


def deliver(
    build: Build, judged: JudgedBuild, out: Path, embed_eval: int, store: Store
) -> Artifact:
    """Write the artifact `out/<name>`. It replaces an older one in one operation."""
    digest, own = pipeline.identity(build), _is_own_baseline(build)
    inputs, outputs = build.signature
    files: dict[str, Path | bytes] = {
        **_assets(build.source),
        **_operators(build),
        **_graph(build, build.graph, ""),
        **_baseline(build, own),
        **_engine(build.engine, ""),
        **_reports(judged),
        **({} if (reach := build.cache_reach) is None else {KV_CACHE: reach.file(KV_CACHE)}),
        "recipe.yaml": _yaml(build.job.recipe.to_json()),
    }
    if build.traits.operators == "ort":
        in_place = build.graph.in_place if isinstance(build.graph, OrtGraph) else ()
        files |= genai.files(Decoder.of(inputs, outputs), files, in_place)
    with storage_errors(store.root, CACHE_OPTION), store.scratch() as folder:
        files |= _stamped(build, files, digest, folder)
        samples = _samples(build, folder / SAMPLES, embed_eval)
        if samples is not None:
            files[SAMPLES] = samples
        engine = _engine(build.engine, "")
        manifest = Manifest(
            name=build.job.name,
            target=build.job.target.name,
            precision=build.job.precision.name,
            digest=digest,
            recipe=build.job.recipe.to_json(),
            inputs=inputs,
            outputs=outputs,
            versions=pipeline.tool_versions(),
            result=judged.result.to_json(),
            data=_data(build),
            engine=EngineFile(build.backend, next(iter(engine), GRAPH)) if build.backend else None,
            instruction_set=_instruction_set(build),
            own_baseline=own,
        )
        return write(out, manifest, files)


def deliver_again(
    artifact: Artifact, build: Build, judged: JudgedBuild, store: Store, *, rescored: bool
) -> Artifact:
    """Replace the unfinished artifact by the finished one. Engines and figures are new, the other
    files stay. `rescored`: the scores are of other samples, which the artifact does not contain."""
    before, folder = artifact.manifest, artifact.path.absolute()
    engine = _engine(build.engine, "")
    old = {f"{prefix}{before.engine.file}" for prefix in ("", _BASELINE) if before.engine}
    kept = before.files.keys() - {name for name in old if name.endswith(".engine")}
    data = before.data
    if rescored:
        kept -= {SAMPLES}
        data = data | _data(build)
    files: dict[str, Path | bytes] = {
        **{name: folder / name for name in kept},
        **({} if before.own_baseline else _engine(build.baseline_engine, _BASELINE)),
        **engine,
        **_reports(judged),
    }
    manifest = replace(
        before,
        name=folder.name,
        result=judged.result.to_json(),
        data=data,
        engine=EngineFile(str(build.backend), next(iter(engine), GRAPH)),
    )
    with storage_errors(store.root, CACHE_OPTION):
        return write(folder.parent, manifest, files)


def join(
    name: str,
    recipe: Mapping[str, object],
    parts: Mapping[str, Artifact],
    result: BuildResult,
    out: Path,
) -> Artifact:
    """Write the artifact `out/<name>` that consists of other artifacts; each is a folder in it.
    `recipe`: the record of the recipe of the whole model."""
    whole = [
        (folder, part.path / file, file)
        for folder, part in parts.items()
        for file in (*part.manifest.files, MANIFEST)
    ]
    first, last = (list(parts.values())[place].manifest for place in (0, -1))
    digests = {folder: part.digest for folder, part in parts.items()}
    manifest = Manifest(
        name=name,
        target=first.target,
        precision=first.precision,
        digest=digest_json({"parts": digests}),
        recipe=recipe,
        inputs=first.inputs,
        outputs=last.outputs,
        versions=first.versions,
        result=result.to_json(),
        parts=digests,
    )
    files: dict[str, Path | bytes] = {f"{folder}/{file}": path for folder, path, file in whole}
    return write(out, manifest, files)


def copy_out(
    entry: StepResult, out: Path, details: Mapping[str, object], origin: OnnxOrigin | None = None
) -> list[str]:
    """Copy a step's files, and its details as JSON, into a new folder `out`. The folder appears
    only when it is complete."""
    with storage_errors(out, OUT_OPTION):
        make_folder(out.parent)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            for name in entry.files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if name.endswith(".onnx"):
                    stamp(
                        entry.file(name), folder / name, _OPTKIT, {"digest": entry.digest}, origin
                    )
                else:
                    shutil.copyfile(entry.file(name), folder / name)
            (folder / _DETAILS).write_text(json.dumps(dict(details), indent=1))
            folder.chmod(0o755)
            fsync_tree(folder)
            folder.rename(out)
            fsync_dir(out.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return sorted([*entry.files, _DETAILS])


def _is_own_baseline(build: Build) -> bool:
    """Whether the baseline's graph and engine are the same files as the candidate's."""
    pairs = [(build.graph, build.baseline), (build.engine, build.baseline_engine)]
    return build.is_baseline and all((a and a.digest) == (b and b.digest) for a, b in pairs)


def _baseline(build: Build, own: bool) -> dict[str, Path | bytes]:
    """The baseline's graph and engine, if the artifact does not have them already."""
    if own:
        return {}
    return {**_graph(build, build.baseline, _BASELINE), **_engine(build.baseline_engine, _BASELINE)}


def _data(build: Build) -> dict[str, dict[str, object]]:
    """The samples that were used; those of the evaluation can be found again in the store."""
    data = pipeline.data_of(build)
    if build.scored is not None:
        data["evaluation"] |= record_of(build.scored)
    return data


def _graph(build: Build, entry: Graph, prefix: str) -> dict[str, Path | bytes]:
    """The files of the graph, without the simulation if the graph itself was evaluated."""
    left_out = SIMULATION if build.measured else ()
    names = [name for name in entry.files if not name.startswith(left_out)]
    return {f"{prefix}{name}": entry.file(name) for name in names}


def _stamped(
    build: Build, files: Mapping[str, Path | bytes], digest: str, folder: Path
) -> dict[str, Path | bytes]:
    """The ONNX files, copied into `folder`. Each gets the digest of the build, what is known of the
    preprocessing, and the level of ONNX Runtime's optimization at which it was evaluated (None: it
    was not)."""
    evaluated = build.simulation, f"{_BASELINE}{build.baseline_simulation}"
    judged: dict[str, str | None] = dict.fromkeys(evaluated, "basic")
    if build.measured:
        judged = dict.fromkeys(judged, None if build.runs_engines else "all")
    known = preprocessing(_assets(build.source), build.job.recipe)
    stamped: dict[str, Path | bytes] = {}
    for name, path in files.items():
        if isinstance(path, Path) and path.suffix == ".onnx":
            about = {"digest": digest, PREPROCESSING: known, "optimization_level": judged.get(name)}
            if name == GRAPH:
                about |= {"instruction_set": _instruction_set(build)}
            stamped[name] = stamp(
                path, folder / name.replace("/", "."), _OPTKIT, about, build.origin
            )
    return stamped


def _instruction_set(build: Build) -> str | None:
    return build.graph.instruction_set if isinstance(build.graph, OrtGraph) else None


def _assets(entry: Graph) -> dict[str, Path | bytes]:
    """Tokenizer, processor and configuration of the model, at the root, where libraries look for
    them."""
    prefix = f"{ASSETS}/"
    names = [name for name in entry.files if name.startswith(prefix)]
    return {name.removeprefix(prefix): entry.file(name) for name in names}


def _operators(build: Build) -> dict[str, Path | bytes]:
    """The libraries of the graph's own operators: for ONNX Runtime, and for TensorRT on a GPU."""
    libraries = {
        OPERATORS: OperatorLibrary.of(build.source.file(GRAPH)),
        PLUGINS: None if build.job.target.is_cpu else build.plugins,
    }
    return {
        f"{folder}/{library.file}": library.open_path(GRAPH)
        for folder, library in libraries.items()
        if library is not None
    }


def _engine(entry: CompiledEngine | None, prefix: str) -> dict[str, Path | bytes]:
    """The engine file; none if the engine is the graph itself."""
    if entry is None or backend(entry.engine.backend).traits.engine == "graph":
        return {}
    name = entry.engine.file
    return {f"{prefix}{name}": entry.file(name)}


def _reports(judged: JudgedBuild) -> dict[str, Path | bytes]:
    return {
        "report.json": _text(json.dumps(judged.report.to_json(), indent=1, sort_keys=True)),
        "report.html": _text(to_html(judged.report)),
        "report.md": _text(to_markdown(judged.report)),
    }


def _samples(build: Build, file: Path, limit: int) -> Path | None:
    entry = build.scored
    if entry is None or sum(entry.file(name).stat().st_size for name in entry.files) > limit:
        return None
    metadata = {
        "metric": entry.metric,
        "scoring": dict(entry.scoring),
        "agreement": entry.agreement,
    }
    Spool(entry.path).to_file(file, metadata)
    return file


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _yaml(data: Mapping[str, object]) -> bytes:
    from ruamel.yaml import YAML

    buffer = io.BytesIO()
    buffer.write(b"# A record of the recipe as it was resolved. It is never executed.\n")
    writer = YAML(typ="safe", pure=True)
    # the order of patterns of node names matters: the last match counts
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(dict(data), buffer)
    return buffer.getvalue()
