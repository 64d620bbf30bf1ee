"""README.md of the package: the model card that the Hugging Face hub shows."""

from __future__ import annotations

from pydantic import JsonValue

from optkit.road.packaging import model_card
from optkit.road.packaging.variants import PackageSubject
from optkit.show.report import markdown

_REMARK = (
    "These are the figures of the ONNX artifact with the same weights. MLX computes activations in "
    "its own way, and nothing was measured with it."
)
_USE = """\
```sh
pip install mlx-lm
mlx_lm.generate --model . --prompt "Hello"
```"""


def text(subject: PackageSubject, remarks: tuple[str, ...]) -> str:
    """`remarks`: what is not as in the artifact."""
    variant = subject.only("mlx")
    manifest = variant.artifact.manifest
    keys: dict[str, JsonValue] = {
        "library_name": "mlx",
        "pipeline_tag": "text-generation",
        "tags": ["mlx", "optkit", manifest.precision],
    }
    built = f"from the optkit artifact {markdown.text(variant.artifact.name)} ({manifest.digest})"
    parts = (
        model_card.front_matter(subject, [manifest.precision], keys),
        f"# {markdown.text(subject.name)}",
        f"Weights{model_card.link(subject)} in MLX's form, {built}.",
        "\n".join(f"- {markdown.text(remark)}" for remark in remarks),
        "## Use",
        _USE,
        "## Figures",
        _REMARK,
        *model_card.figures(variant),
    )
    return "\n\n".join(part for part in parts if part) + "\n"
