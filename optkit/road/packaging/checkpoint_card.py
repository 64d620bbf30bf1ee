"""README.md of a package with the weights of a model for another program: the model card that the
Hugging Face hub shows."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from optkit.road.packaging import model_card
from optkit.road.packaging.variants import PackageSubject
from optkit.show.report import markdown


@dataclass(frozen=True)
class CardWords:
    """What a card says of its format.

    library  `library_name` of the hub
    tags     of the hub, beside that of the precision
    form     in which form the weights are
    use      how to load them, in Markdown
    remark   what the readers compute in another way than the artifact
    """

    library: str
    tags: tuple[str, ...]
    form: str
    use: str
    remark: str


def text(
    subject: PackageSubject, form: str, words: CardWords, task: str | None, remarks: tuple[str, ...]
) -> bytes:
    """`form`: the format. `task`: `pipeline_tag` of the hub. `remarks`: what is not as in the
    artifact."""
    variant = subject.only(form)
    manifest = variant.artifact.manifest
    keys: dict[str, JsonValue] = {
        "library_name": words.library,
        "tags": [*words.tags, "optkit", manifest.precision],
    }
    if task is not None:
        keys["pipeline_tag"] = task
    built = f"from the optkit artifact {markdown.text(variant.artifact.name)} ({manifest.digest})"
    parts = (
        model_card.front_matter(subject, [manifest.precision], keys),
        f"# {markdown.text(subject.name)}",
        f"Weights{model_card.link(subject)} in {words.form}, {built}.",
        "\n".join(f"- {markdown.text(remark)}" for remark in remarks),
        "## Use",
        words.use,
        "## Figures",
        f"These are the figures of the ONNX artifact with the same weights. {words.remark}",
        *model_card.figures(variant),
    )
    card = "\n\n".join(part for part in parts if part) + "\n"
    return card.encode("utf-8", "replace")
