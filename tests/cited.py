"""Figures of the pages that come from a results file. An invisible marker behind a figure says
where it comes from:

    3.5 to 8.2 dB<!-- from: docs/studies/benchmarks.md#/*/optkit against*/int8/SQNR* "{min:.1f} to
    {max:.1f} dB" -->

A table of a study that is in no other file is a record itself, to which markers lead:

    Measured in turns:<!-- results: 2026-11-12; AMD EPYC, AVX512-VNNI; experiments/a.py at 60432036
    -->

CONTRIBUTING.md describes both. To list the figures that have none:

    python -m tests.cited
"""

from __future__ import annotations

import ast
import json
import operator
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests import figures

ROOT = Path(__file__).resolve().parent.parent
# pages that a script writes from results or from the code, each with a test of its own
WRITTEN = {
    "docs/studies/benchmarks.md": "experiments/peers/page.py",
    figures.PAGE.relative_to(ROOT).as_posix(): "tests/figures.py",
    "docs/reference/translated_flags.md": "tests/translation/flags_page.py",
    **{
        f"docs/reference/{name}.md": "site/reference.py"
        for name in (
            "command_line",
            "exit_codes",
            "findings",
            "json",
            "recipe_keys",
            "target_table",
        )
    },
    "docs/reference/compared.md": "site/compared.py",
    "docs/reference/compared_more.md": "site/compared.py",
    "docs/reference/models.md": "tests/matrix/table.py",
    "docs/studies/families.md": "tests/matrix/table.py",
}
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MARKER = re.compile(
    r'<!-- from: (?P<file>[^\s#]+)#(?P<pointers>/[^"]+?)'
    r'(?: (?P<how>over|less|minus) (?P<other>[^"]+?))? "(?P<text>[^"]+)" -->'
)
# of a text or table that is itself the results file: when, where and by what it was measured
RECORD = re.compile(r"<!-- results: \d{4}-\d\d-\d\d; [^;]+; [^;]+ -->")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.M)
# what others chose or published: settings, limits, versions, sizes; their sources are in the text
GIVEN = re.compile(r"<!-- given: ([^<>]+?) -->")
WRITTEN_PART = re.compile(r"<!-- written by (\S+) -->(.*?)<!-- end -->", re.DOTALL)
CODE = re.compile(r"`[^`]*`")
FIGURE = re.compile(
    r"(?<![\w.])\d(?:[\d,]*\d)?(?:\.\d+(?:e[+-]?\d+)?(?: ?(?:%|×|dB\b))?"
    r"| ?(?:%|×|dB\b|points\b|times\b|seconds\b|[mµ]?s\b|minutes\b|hours\b|[KMG]i?B\b))"
)
# versions, the level of an interval, addresses, sizes of tensors and models
UNMEASURED = re.compile(
    r"\b(?:Python|Runtime|RTX|TensorRT|Ultralytics|CycloneDX|arXiv|transformers|torch|vLLM|ModelOpt"
    r"|GenAI|Triton|capability|Kubernetes|skopeo|docker-registry|CUDA|optimum|Llama|version"
    r"|compressed-tensors|opset|MLPerf|JetPack|ONNX|Signing|Apache|YAML)[ :-]\d[\d.]*\d"
    r"|\b95%(?= intervals?\b|\])|\]\([^)]*\)|\barXiv:\d+\.\d+|\b\d+\.\d+\.\d[\d.]*"
    r"|\d[\d,.]*(?: ?× ?\d[\d,.]*)+|\d[\d,.]* (?:M|B|million)\b",
    re.I,
)

HOW: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "over": operator.truediv,
    "less": lambda one, two: 100 * (1 - one / two),
    "minus": operator.sub,
}


@dataclass(frozen=True)
class Marker:
    """`pointers`: into the file; `other`: as many, or a number. `how`: what is done with the values
    of both, a key of HOW. `before`: the text of the block before the marker."""

    file: str
    pointers: str
    how: str | None
    other: str | None
    text: str
    before: str

    def values(self) -> list[Decimal]:
        found = values(self.file, self.pointers)
        if self.how is None or self.other is None:
            return found
        if self.other.startswith("/"):
            others = values(self.file, self.other)
        else:
            others = [Decimal(self.other)] * len(found)
        pairs = zip(found, others, strict=True)
        return [HOW[self.how](one, two) for one, two in pairs]

    def expected(self, kind: type[Decimal] | type[float] = Decimal) -> str:
        """What the page should say. What lies half way, such as 24.15 with one digit, `Decimal`
        rounds to the even digit, and `float` as the binary number has it."""
        found: list[Any] = [kind(value) for value in self.values()]
        named = {"min": min(found), "max": max(found), "median": statistics.median(found)}
        return self.text.format(*found, **named, sum=sum(found), count=len(found))

    def pattern(self) -> re.Pattern[str]:
        return whole(*(plain(self.expected(kind)) for kind in (Decimal, float)))

    def holds(self) -> bool:
        return self.pattern().search(plain(self.before)) is not None


def whole(*texts: str) -> re.Pattern[str]:
    """One of the texts, not as a part of a longer number."""
    return re.compile(rf"(?<![\d.,])(?<!\d-)(?:{'|'.join(map(re.escape, texts))})(?!\d|[.,]\d)")


def plain(text: str) -> str:
    """Without what a marker need not repeat: bars between cells, the form of a minus sign, and the
    space before a percent sign (`{:.0%}` has none)."""
    return " ".join(text.replace("−", "-").replace("|", " ").split()).replace(" %", "%")


def pages() -> list[Path]:
    """README and the pages of docs that people write."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.relative_to(ROOT).as_posix() not in WRITTEN]


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, points of a list and rows of a table, without what stands between fences, and
    what a script writes."""
    for paragraph in re.split(r"\n\s*\n", WRITTEN_PART.sub("", FENCE.sub("", text))):
        yield from re.split(r"\n(?=\||\s*[-*] |\s*\d+\. |#)", paragraph)


def markers(text: str) -> list[Marker]:
    found = []
    for block in blocks(text):
        for one in MARKER.finditer(block):
            before = COMMENT.sub("", block[: one.start()])
            found.append(Marker(**one.groupdict(), before=before))
    return found


def values(file: str, pointers: str) -> list[Decimal]:
    """The numbers to which the pointers lead, in the order of the file."""
    found = []
    for pointer in re.split(r",(?=/)", pointers):
        leaves = list(followed(content(file), pointer.split("/")[1:]))
        if not leaves:
            raise LookupError(f"{file} has nothing at {pointer}")
        found += [number(leaf) for leaf in leaves]
    return found


def followed(node: Any, steps: list[str]) -> Iterator[Any]:
    """A step is a key, where `*` and `?` stand for any letters, the index of a list, or
    `key=value`: the objects that have this value; several of these, with `;` between them."""
    if not steps:
        yield node
        return
    step = steps[0].replace("~1", "/").replace("~0", "~")
    items = dict(enumerate(node)) if isinstance(node, list) else node
    if not isinstance(items, dict):
        return
    for one in step.split(";"):
        for name, item in items.items():
            if fnmatchcase(str(name), one) or _has(item, one):
                yield from followed(item, steps[1:])


def _has(item: Any, condition: str) -> bool:
    key, equal, wanted = condition.partition("=")
    return bool(equal) and isinstance(item, dict) and fnmatchcase(str(item.get(key)), wanted)


def number(leaf: Any) -> Decimal:
    """A number, or the first one of a text."""
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return Decimal(str(leaf))
    found = re.search(r"[+-]?\d[\d,]*(?:\.\d+)?", str(leaf).replace("−", "-"))
    if found is None or not isinstance(leaf, str):
        raise ValueError(f"no number: {leaf!r}")
    return Decimal(found[0].replace(",", ""))


@cache
def content(file: str) -> Any:
    path = ROOT / file
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return tables(text)
    if path.suffix == ".py":
        return constants(ast.parse(text).body)
    return json.loads(text) if path.suffix == ".json" else YAML(typ="safe").load(text)


def constants(body: list[ast.stmt]) -> dict[str, Any]:
    """The numbers to which names of a module and fields of its classes are set."""
    found: dict[str, Any] = {}
    for node in body:
        match node:
            case ast.ClassDef():
                found[node.name] = constants(node.body)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
            ):
                found[name] = value
    return found


def tables(text: str) -> dict[str, Any]:
    """A page as an object: below each heading of the second level its headings, and the rows of its
    tables by their first cell; below each row its cells by the names of the columns."""
    page: dict[str, Any] = {}
    below, columns = [page], list[str]()
    for line in FENCE.sub("", text).splitlines():
        if heading := re.match(r"(#+) (.+)", line):
            level = max(1, len(heading[1]) - 1)
            del below[level:]
            below.append({})
            below[-2][heading[2]] = below[-1]
        elif not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells(line)
        elif not set(line) <= set("|-: "):
            first, *others = cells(line)
            below[-1][first] = dict(zip(columns[1:], others, strict=True))
    return page


def cells(line: str) -> list[str]:
    inner = COMMENT.sub("", line).strip().strip("|")
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", inner)]


def unmarked(text: str) -> list[str]:
    """The figures outside of code that no marker of their block covers, each with its block. Those
    of records are left out: of blocks that say so, and of the table behind such a block."""
    found, recorded = [], False
    for block in blocks(text):
        recorded = RECORD.search(block) is not None or (block.startswith("|") and recorded)
        if not recorded:
            figures = FIGURE.findall(uncovered(block))
            found += [f"{one}: {' '.join(block.split())}" for one in figures]
    return found


def uncovered(block: str) -> str:
    """The text of a block without what is no figure, and what its markers say or name as given."""
    text = plain(COMMENT.sub("", block))
    for one in markers(block):
        text = one.pattern().sub(" ", text)
    text = UNMEASURED.sub(" ", CODE.sub(" ", text))
    for given in given_in(block):
        text = whole(given).sub(" ", text)
    return text


def given_in(block: str) -> list[str]:
    return [plain(one) for found in GIVEN.findall(block) for one in found.split(";")]


if __name__ == "__main__":
    for page in pages():
        for one in unmarked(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}: {one[:150]}")
