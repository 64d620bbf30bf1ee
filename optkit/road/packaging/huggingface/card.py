"""The card of a repository: README.md with YAML at its top, which the hub reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from optkit.ground.decoder import CONFIG, read_json
from optkit.road.packaging import model_card
from optkit.road.packaging.variants import PackageSubject, Variant
from optkit.show.report import markdown

# a suffix of the class in config.json → the hub's task, and optimum's class
_TASKS = {
    "ForSequenceClassification": ("text-classification", "ORTModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "ORTModelForTokenClassification"),
    "ForQuestionAnswering": ("question-answering", "ORTModelForQuestionAnswering"),
    "ForMaskedLM": ("fill-mask", "ORTModelForMaskedLM"),
    "ForCausalLM": ("text-generation", "ORTModelForCausalLM"),
    "LMHeadModel": ("text-generation", "ORTModelForCausalLM"),
    "ForImageClassification": ("image-classification", "ORTModelForImageClassification"),
}
_LOADED_BY_OPTIMUM = """\
With optimum (`pip install 'optimum-onnx[onnxruntime]'`):

```python
from optimum.onnxruntime import {loader}

model = {loader}.from_pretrained(FOLDER, subfolder="onnx", file_name="{file}")
```"""
_LOADED_BY_ORT = """\
With ONNX Runtime:

```python
import onnxruntime

session = onnxruntime.InferenceSession("onnx/{file}", providers=["CPUExecutionProvider"])
```"""


@dataclass(frozen=True)
class ListedGraph:
    """A graph of the repository. `dtype`: transformers.js' name for its precision, if any."""

    variant: Variant
    file: str
    dtype: str | None


def text(
    subject: PackageSubject, listed: Sequence[ListedGraph], companions: Mapping[str, Path]
) -> str:
    """README.md. Raises InputRefused if config.json is not a JSON object."""
    task = _task(companions)
    parts = (
        _front_matter(subject, listed, task),
        f"# {markdown.text(subject.name)}",
        _origin(subject),
        _files(listed),
        "## Figures",
        *(_figures(one) for one in listed),
        "## Use",
        _use(listed, task),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _task(companions: Mapping[str, Path]) -> tuple[str, str] | None:
    """The task of the class in config.json, and optimum's class for it."""
    if CONFIG not in companions:
        return None
    named = read_json(companions[CONFIG].read_bytes(), CONFIG).get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    return next((task for suffix, task in _TASKS.items() if first.endswith(suffix)), None)


def _front_matter(
    subject: PackageSubject, listed: Sequence[ListedGraph], task: tuple[str, str] | None
) -> str:
    precisions = [_precision(one) for one in listed]
    keys: dict[str, JsonValue] = {}
    if task is not None:
        keys = {"library_name": "transformers.js", "pipeline_tag": task[0]}
    keys["tags"] = ["onnx", "optkit", *sorted({*precisions})]
    return model_card.front_matter(subject, precisions, keys)


def _origin(subject: PackageSubject) -> str:
    return (
        f"ONNX graphs{model_card.link(subject)}, built by optkit. Each figure below says how it is "
        "known: its evidence."
    )


def _files(listed: Sequence[ListedGraph]) -> str:
    rows = (
        (
            f"onnx/{one.file}",
            one.variant.name,
            _precision(one),
            one.dtype,
            one.variant.artifact.digest,
        )
        for one in listed
    )
    return markdown.table(
        ("file", "target", "precision", "dtype in transformers.js", "build"), rows
    )


def _figures(one: ListedGraph) -> str:
    engine = one.variant.artifact.manifest.compiled
    remark = "These are the figures of the engine that was compiled from this graph."
    parts = (
        f"### {markdown.text(f'{one.file}: {one.variant.name}, {_precision(one)}')}",
        remark if engine else "",
        *model_card.figures(one.variant),
    )
    return "\n\n".join(part for part in parts if part)


def _use(listed: Sequence[ListedGraph], task: tuple[str, str] | None) -> str:
    file = listed[0].file
    loads = [_LOADED_BY_OPTIMUM.format(loader=task[1], file=file)] if task else []
    return "\n\n".join([*loads, _LOADED_BY_ORT.format(file=file)])


def _precision(one: ListedGraph) -> str:
    return one.variant.artifact.manifest.precision
