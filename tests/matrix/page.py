"""docs/reference/models.md and docs/studies/families.md, from table.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.matrix import notes
from tests.matrix.columns import COLUMNS
from tests.matrix.families import FAMILIES, GROUPS
from tests.matrix.row import LEAST_SQNR, LIMIT
from tests.matrix.worth import BATCHES, KINDS, PRECISIONS, verdict

Found = dict[str, Any]

_HEAD = """# Model families, and what works for each

optkit builds a Hugging Face folder, or `org/name` on the hub, of the families below
([how to](../how_to/hugging_face.md)). Other models of the same kinds work if `torch.export` can trace
them. A module of your own needs no family.

`python tests/matrix/table.py` wrote this page on {date}; do not edit it. One small model per family,
with random weights, goes through nine checks: export, equality with torch, dynamic axes, padded
batches, generated text, fusion, FP16, INT8, and the compilation by TensorRT-RTX without a run.
{families} families: {passed} of {cells} checks pass, {refused}. The
[study of families](../studies/families.md) has the figures of each. Accuracy is a property of trained
weights: no row tells it, the gate of your build does. [Trained models of others](../studies/zoo.md)
were built too.

## What works

| group | families |
|---|---|
"""  # noqa: E501

_TIES = """With random weights the scores of experts (mixtures of experts) and of queries (RT-DETR,
D-FINE) nearly tie, so a rounding exchanges some of them: their SQNR says nothing of trained models.
"""

_WORTH_HEAD = """## What is worth shipping

| group | advice |
|---|---|
"""

_GAINS_HEAD = """The *predicted* gain over FP16 on an L4, for models of published sizes, from `optkit plan` (nothing
was compiled or run; nine of ten measured ratios lie within a factor of 1.25 to 1.50, by the kind of
model). *Yes*: the whole interval is above 1. *No*: less than 1.1, and quantization costs accuracy.
*Measure*: the interval contains 1, so only a measurement on the device decides. FP8 counts a
key-value cache in FP8, as servers of language models keep it. A graph that optkit builds keeps its
cache in FP16, and then FP8 gains about as much as INT8.
"""  # noqa: E501

_STUDY = """# Study: one small model of each family through every stage

`python tests/matrix/table.py` wrote this page on {date}, on a CPU; do not edit it. One small model per
family (two layers of width 32, seeded random weights) goes from a Hugging Face folder through every
stage. {families} families: {passed} of {cells} cells pass, {refused}. A test checks every row against
this table. [Model families](../reference/models.md) has the result in short.

- **Versions:** {versions}.{older}

| column | meaning |
|---|---|
| exports | number of nodes in the exported graph |
| equals torch | largest difference from transformers in float32, as a share of the output's largest value, at the tuned sizes; at most {limit:.0e} |
| axes hold | the same difference at the lower end, at the upper end and in the middle of all dynamic axes |
| padded batch | three samples of unequal lengths in one padded batch: the same difference from transformers, which computes each sample alone and without padding, at the real tokens |
| generation | greedy text of the graph with its cache equals that of transformers' `generate`, token for token: prompts × tokens, each prompt alone and all in one padded batch |
| fused forms agree | number of nodes: exported → `standard` form → form for ONNX Runtime; the outputs of the forms differ by at most {limit:.0e} at the same three sizes |
| FP16 | the graph in FP16 runs in ONNX Runtime: SQNR against FP32 in dB, at least {fp16:g} |
| INT8 | the graph in INT8 for a CPU runs in ONNX Runtime: SQNR against FP32 in dB, at least {int8:g} |
| TensorRT-RTX | the INT8 graph compiles for compute capability 8.9 (not run): landed / planned products; a product whose input no range serves at all lengths is not planned |

"–": the column does not apply. *Refused*: optkit does not export the family, and says why
([reason and remedy](../reference/models.md#what-is-refused-and-the-remedy)).

The samples are random, and the SQNR is computed on the calibration samples. So the SQNR shows that
nothing is broken; it does not predict the SQNR of a trained model. A decoder is one graph with its
cache, run on a past of 8 tokens; an encoder-decoder is two graphs; CLIP and SigLIP are one graph of
both towers. SigLIP has no padded batch: it pools the last place of a text, and is used with texts
of full length. Decoders and XLNet are padded on the left, other models on the right. Batch norms are
shifted so that most values pass the ReLU: without this shift, random MobileNetV2 had 31 dB in FP16 and 4 dB in
INT8, below both limits.
"""  # noqa: E501


def page(found: Found, gains: Found) -> str:
    """The page of reference of a whole table, with the predicted gains of worth.json."""
    rows = found["rows"]
    lines = [_HEAD.format(**_counts(found)).rstrip()]
    for title, group in GROUPS.items():
        lines.append(f"| {title} | {'; '.join(_titles(rows, group))} |")
    lines += ["", "*Refused* and ¹ (one check or more fails) are explained below.", ""]
    lines += [*_failures(rows), *_refusals(rows), "", _WORTH_HEAD.rstrip()]
    lines += [f"| {title} | {notes.ADVICE[title]} |" for title in GROUPS]
    lines += ["", _GAINS_HEAD, *_gains(gains)]
    return "\n".join(lines).rstrip() + "\n"


def study(found: Found) -> str:
    """The page of the figures: every cell of a whole table, and why a precision is worth it."""
    rows = found["rows"]
    lines = [
        _STUDY.format(
            versions=_versions(found["versions"]),
            older="".join(_older(one, found["versions"]) for one in found["older"]),
            limit=LIMIT, **_counts(found), **LEAST_SQNR,
        )
    ]  # fmt: skip
    for title, group in GROUPS.items():
        of_group = {name: row for name, row in rows.items() if name.partition("/")[0] in group}
        lines += [f"## {title}\n", *_table(of_group), ""]
        lines += [f"**What is worth shipping.** {notes.WORTH[title]}\n"]
    return "\n".join(lines).rstrip() + "\n"


def _counts(found: Found) -> Found:
    rows = found["rows"]
    cells = [cell for row in rows.values() if "refused" not in row for cell in row.values()
             if cell["value"] is not None or not cell["ok"]]  # fmt: skip
    refused = {name.partition("/")[0] for name, row in rows.items() if "refused" in row}
    return {
        "date": found["date"], "families": len(FAMILIES), "cells": len(cells),
        "passed": sum(cell["ok"] for cell in cells),
        "refused": f"{len(refused)} {'family is' if len(refused) == 1 else 'families are'} refused",
    }  # fmt: skip


def _titles(rows: Found, group: Found) -> Iterator[str]:
    """The families of a group, each with a mark if not everything passed."""
    for family in group:
        own = [row for name, row in rows.items() if name.partition("/")[0] == family]
        refused = any("refused" in row for row in own)
        failed = any(not cell["ok"] for row in own if "refused" not in row for cell in row.values())
        yield FAMILIES[family].title + (" (*refused*)" if refused else "¹" if failed else "")


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _older(rows: Found, today: dict[str, str]) -> str:
    others = {name: number for name, number in rows["versions"].items() if number != today[name]}
    names = "; ".join(map(title_of, rows["rows"]))
    return f"\n- **Rows of {rows['date']}**, with {_versions(others)}: {names}."


def _table(rows: Found) -> Iterator[str]:
    yield f"| family | {' | '.join(COLUMNS)} |"
    yield f"|---{'|---' * len(COLUMNS)}|"
    for name, row in rows.items():
        if "refused" in row:
            cells = ["*refused*", *["–"] * (len(COLUMNS) - 1)]
        else:
            cells = [_shown(cell) for cell in row.values()]
        yield f"| {title_of(name)} | {' | '.join(cells)} |"


def _gains(gains: Found) -> Iterator[str]:
    """One row for each model and batch size."""
    yield f"| model | batch | {' | '.join(name.upper() for name in PRECISIONS)} |"
    yield f"|---|---{'|---' * len(PRECISIONS)}|"
    for title, models in gains.items():
        for model, precisions in models.items():
            for batch in BATCHES:
                kind = KINDS.get(model, KINDS.get(title, "encoder"))
                kind = "serving" if kind == "decode" and batch > 1 else kind
                cells = [_gain(precisions[name], batch, kind) for name in PRECISIONS]
                yield f"| {model} | {batch} | {' | '.join(cells)} |"


def _gain(calls: Found, batch: int, kind: str) -> str:
    if "reason" in calls:
        return str(calls["reason"])
    gain = calls[str(batch)]
    return f"{gain:.2f} × ({verdict(gain, kind)})"


def _shown(cell: Found) -> str:
    if not cell["ok"]:
        return "fails"
    return "–" if cell["value"] is None else str(cell["value"])


def _failures(rows: Found) -> Iterator[str]:
    failed = [
        f"- **{title_of(name)}, {column}:** {cell['reason']}"
        for name, row in rows.items()
        if "refused" not in row
        for column, cell in row.items()
        if not cell["ok"]
    ]
    if failed:
        yield from ("## What fails, and why\n", *failed, "", _TIES)


def _refusals(rows: Found) -> Iterator[str]:
    refused = {name: row["refused"] for name, row in rows.items() if "refused" in row}
    if not refused:
        return
    yield "## What is refused, and the remedy\n"
    yield "| family | what optkit says | remedy | exit code |"
    yield "|---|---|---|---|"
    for name, told in refused.items():
        reason, remedy = (told[key].replace("|", "\\|").replace("\n", " ")
                          for key in ("reason", "remedy"))  # fmt: skip
        yield f"| {title_of(name)} | {reason} | {remedy} | {told['exit_code']} |"


def title_of(name: str) -> str:
    family, _, part = name.partition("/")
    return f"{FAMILIES[family].title}, {part}" if part else FAMILIES[family].title
