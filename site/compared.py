"""Write docs/reference/compared.md and compared_more.md, from compared.yaml beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
NOT_FOUND, UNKNOWN = "–", "?"
CELL = re.compile(r"(?P<answer>yes|partly|no)(?:: (?P<note>.+?))? @(?P<source>\w+)")
PAGES = {
    "compared": """# optkit beside other tools

Which tool does what. [AMD Quark, AIMET 2, Ultralytics, Torch-TensorRT and llm-compressor](compared_more.md) have a page of their own.
""",  # noqa: E501
    "compared_more": """# optkit beside more tools

Which tool does what. [ModelOpt, Olive, trtexec and others](compared.md) have a page of their own.
""",
}
LEGEND = f"""
*Partly* means a part of the row. *{NOT_FOUND}* means that nothing of the kind was found in what we read. *{UNKNOWN}* means that we did not look. All of these tools change quickly: check the [sources](#sources) before you rely on a cell. [compared.yaml](compared.yaml) names the source of each answer, and for each yes of optkit a test that uses the feature.
"""  # noqa: E501


@dataclass(frozen=True)
class Answer:
    """A cell of another tool. `answer`: yes, partly, no, "not found" or "unknown"."""

    answer: str
    note: str | None = None
    source: str | None = None

    def shown(self) -> str:
        if self.source is None:
            return {"not found": NOT_FOUND, "unknown": UNKNOWN}[self.answer]
        return ", ".join(filter(None, (self.answer, self.note)))


@dataclass(frozen=True)
class Own:
    """The cell of optkit. `test`: the id of a test that uses it; `missing`: what `partly` lacks."""

    answer: str
    test: str | None = None
    note: str | None = None
    missing: str | None = None
    page: str | None = None

    def shown(self) -> str:
        linked = f"[{self.answer}]({self.page})" if self.page else self.answer
        return ", ".join(filter(None, (linked, self.note, self.missing)))


@dataclass(frozen=True)
class Feature:
    sentence: str
    own: Own
    answers: dict[str, Answer]


@dataclass(frozen=True)
class Tool:
    """`page`: where its column is. `state`: what was read; `read`: on which day."""

    name: str
    page: str
    state: str
    read: str
    sources: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    tools: dict[str, Tool]
    topics: dict[str, list[Feature]]
    others: list[str]
    remarks: list[str]

    def features(self) -> Iterator[Feature]:
        for features in self.topics.values():
            yield from features


def load() -> Comparison:
    data = YAML(typ="safe").load((FOLDER / "compared.yaml").read_text(encoding="utf-8"))
    tools = {name: Tool(**{**one, "read": str(one["read"])}) for name, one in data["tools"].items()}
    topics = {
        topic["title"]: [_feature(row, tools) for row in topic["features"]]
        for topic in data["topics"]
    }
    return Comparison(tools, topics, data["others"], data["remarks"])


def _feature(row: dict[str, Any], tools: dict[str, Tool]) -> Feature:
    """Each tool has one answer; a known one names a source of its tool."""
    sentence, own = row.pop("feature"), Own(**row.pop("optkit"))
    answers = {
        tool: Answer(answer) for answer in ("not found", "unknown") for tool in row.pop(answer, [])
    }
    for tool, text in row.items():
        cell = CELL.fullmatch(text)
        if cell is None or cell["source"] not in tools[tool].sources or tool in answers:
            raise ValueError(f"{sentence}: {tool}: {text}")
        answers[tool] = Answer(**cell.groupdict())
    if answers.keys() != tools.keys():
        raise ValueError(f"{sentence}: {sorted(answers.keys() ^ tools.keys())}")
    return Feature(sentence, own, answers)


def page(name: str, found: Comparison) -> str:
    """The whole page of the tools that have their columns there."""
    tools = {key: tool for key, tool in found.tools.items() if tool.page == name}
    parts = [PAGES[name] + LEGEND]
    for title, features in found.topics.items():
        rows = [
            [one.sentence, one.own.shown(), *(one.answers[key].shown() for key in tools)]
            for one in features
        ]
        head = ["", "optkit", *(tool.name for tool in tools.values())]
        parts.append(f"## {title}\n\n{table([head, *rows])}")
    if name == "compared":
        points = "\n".join(f"- {one}" for one in found.others)
        parts.append(f"## What they do, and optkit does not\n\n{points}\n")
    read = [
        [tool.name, tool.state, "; ".join(tool.sources.values()), tool.read]
        for tool in tools.values()
    ]
    head = ["tool", "what was read", "where its answers are from", "read on"]
    parts.append(f"## Sources\n\n{table([head, *read])}")
    if name == "compared":
        parts += [one + "\n" for one in found.remarks]
    return "\n".join(parts)


def table(rows: list[list[str]]) -> str:
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others]) + "\n"


if __name__ == "__main__":
    comparison = load()
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name, comparison), encoding="utf-8")
