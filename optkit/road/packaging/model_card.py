"""Parts of a model card, the README.md that the Hugging Face hub shows and whose YAML it reads."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from optkit.facts.precisions import PRECISIONS
from optkit.road.packaging.variants import PackageSubject, Variant
from optkit.show.report import markdown, view


def base_model(subject: PackageSubject) -> str | None:
    """The model's name on the hub; None: it was not read from the hub."""
    model = subject.variants[0].artifact.manifest.recipe.get("model")
    hub = model.get("hub") if isinstance(model, dict) else None
    return hub if isinstance(hub, str) else None


def link(subject: PackageSubject) -> str:
    """of [base model](its page); empty if it is not known."""
    base = base_model(subject)
    return f" of [{markdown.text(base)}](https://huggingface.co/{base})" if base else ""


def front_matter(
    subject: PackageSubject, precisions: Iterable[str], keys: Mapping[str, JsonValue]
) -> str:
    """The YAML at the top: the base model and these keys."""
    from ruamel.yaml import YAML

    data: dict[str, JsonValue] = {}
    base = base_model(subject)
    if base is not None:
        data["base_model"] = base
        if all(name in PRECISIONS and PRECISIONS[name].quantized for name in precisions):
            data["base_model_relation"] = "quantized"
    buffer = io.BytesIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.dump({**data, **keys}, buffer)
    return f"---\n{buffer.getvalue().decode()}---"


def figures(variant: Variant) -> list[str]:
    """The headline of a build and its figures with their evidence, in paragraphs."""
    result = variant.result
    head = view.headline(result)
    return [
        f"**{markdown.text(head.title)}.** {markdown.text(head.sentence)}",
        markdown.comparison(result),
        markdown.measured(result),
        markdown.legend(result),
    ]
