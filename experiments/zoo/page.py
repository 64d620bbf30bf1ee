"""results.md: one table, then every refusal with its reason and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

FORMS = {
    "cpu int8": "cpu INT8", "cpu fp8": "cpu FP8", "l4 int8": "l4 INT8", "l4 fp8": "l4 FP8",
    "static": "ORT static", "dynamic": "ORT dynamic",
}  # fmt: skip
_HEAD = ("model", "form", "agreement", "SQNR, dB", "× FP32", "landed", "ships", "seconds")


class Named(Protocol):
    name: str
    what: str
    package: str


def page(results: dict, models: Sequence[Named]) -> str:
    parts = [
        "# Models that packages ship",
        f"`run.py` beside it wrote this on {results['date']} ({results['machine']}, busy).",
        "\n".join([
            "- **agreement**: decisions on held-out inputs that are those of the model as shipped",
            "- **SQNR**: of the output with the lowest one, on the same inputs",
            "- **× FP32**: times as fast as the model as shipped, one thread, measured in turn",
            "- **landed**: products in the asked precision of those planned, once compiled",
            "- **ships**: what optkit recommends",
            "- **seconds**: of the build, with the store that the builds before it have filled",
        ]),
        "\n".join([f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD),
                   *(_row(name, cell) for name, cells in results["models"].items()
                     for cell in cells)]),
    ]  # fmt: skip
    refused = [_reason(name, cell) for name, cells in results["models"].items()
               for cell in cells if cell["error"]]  # fmt: skip
    if refused:
        parts += ["## Why there is none", "\n".join(refused)]
    known = {model.name: model for model in models}
    parts += ["## The models", "\n".join(
        f"- **{name}**: {known[name].what} (`{known[name].package}`)" for name in results["models"]
    )]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _row(name: str, cell: dict) -> str:
    measured, said = cell["measured"], cell["said"]
    if measured is None:
        word = "crash" if cell["crash"] else "refused"
        if cell["form"] in ("static", "dynamic"):
            word = "an error"
        return f"| {name} | {FORMS[cell['form']]} | {word} | | | | | {cell['seconds']:.0f} |"
    landing = (said.get("engine") or {}).get("landing") or {}
    cells = (
        name,
        FORMS[cell["form"]],
        "–" if measured["agreement"] is None else f"{100 * measured['agreement']:.1f} %",
        "exact" if measured["sqnr_db"] is None else f"{measured['sqnr_db']:.1f}",
        f"{measured['ratio']:.2f}" if measured["ratio"] else "",
        f"{landing['landed']}/{landing['planned']}" if landing.get("planned") else "",
        (said.get("recommendation") or {}).get("ship") or "",
        f"{cell['seconds']:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _reason(name: str, cell: dict) -> str:
    text = " ".join(str(cell["error"]).split())
    hint = f" *{' '.join(cell['hint'].split())}*" if cell["hint"] else ""
    return f"- **{name}, {FORMS[cell['form']]}**: {text}{hint}"
