"""How hard the package is to read, by syntax tree: each count has a limit, and `make lint` fails
above it.

    python lint/house.py              the counts beside their limits; exit code 1 above one
    python lint/house.py --places     also the places that are counted
    python lint/house.py --lower      limits.json gets the counts that have fallen

A limit rises only by an edit of limits.json, whose commit says why. The budgets of lines have room
for small changes: they are rounded up to the next 250.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("limits.json")
PACKAGE = "optkit"
LONG_FUNCTION, COMPLEX, LONG_MODULE = 60, 15, 400
_ALIKE = 0.8  # share of the fields that two classes have in common
_FIELDS = 4  # classes with fewer are not compared
_MIRRORED = {  # the pairs of classes that may be alike, and why
    ("SessionArguments", "SessionOptions"): "the keywords of Artifact.session, for type checkers",
    (
        "SamplingChoice",
        "Sampling",
    ): "an option may be absent; Sampling has defaults and checks them",
    ("Target", "DeviceFacts"): "the document has the texts of the sources instead of properties",
    ("TrainingBytes", "Training"): "whole bytes with a stored total, of floats that are added up",
    (
        "InferenceMemory",
        "MemoryEstimate",
    ): "whole bytes with a stored total, of floats that are added up",
    ("Axis", "AxisRange"): "a key of a recipe, whose errors name lines; steps have only the range",
}
_PARTICIPLE = re.compile(r"[A-Z][a-z]+ed|Drawn|Found|Given|Held|Kept|Known|Made|Run|Seen|Told")
_ROUND = 250
_ENTRANCES = {"__init__.py", "__main__.py"}
_DECLARED = {  # names that may stand twice, or are participles, because readers hold them
    "Asked": "of the frozen schema of plan",
    "DeployCallback": "of two trainers, each imported from the module of its trainer",
    "Distilled": "a public name of optkit.qat",
    "Explained": "of the frozen schema of explain",
    "FrontPoint": "of the frozen schemas of plan and tune",
    "OutputFidelity": "of the frozen schema of report; a fact that is measured",
    "detection": "tasks of users import the samples from one, the score from the other",
    "diff": "the command, and the document that it prints",
    "package": "the command, and the document that it prints",
    "plan": "the command, and the document that it prints",
    "tune": "the command, and the document that it prints",
}


@dataclass(frozen=True)
class Module:
    """A Python file of the package, by its path in the repository."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def stem(self) -> str:
        return Path(self.path).stem


@dataclass(frozen=True)
class Class:
    """A class at the top of a module, and its public annotated fields."""

    module: Module
    name: str
    fields: frozenset[str]

    @property
    def place(self) -> str:
        return f"{self.module.path} {self.name}"


def counts(root: Path) -> dict[str, list[str]]:
    """What is counted → its places, in the checkout in `root`."""
    files = [_module(root, path) for path in sorted((root / PACKAGE).rglob("*.py"))]
    modules = [one for one in files if not is_public_path(one)]
    classes = [found for module in modules for found in _classes(module)]
    mirrored = list(_mirrored(classes))
    return {
        "rooms": sorted({one.path.split("/")[1] for one in modules} - _ENTRANCES),
        "mirrored classes": [f"{a.place} = {b.place}" for a, b in mirrored],
        "mirrored classes without a reason": [
            f"{a.place} = {b.place}"
            for a, b in mirrored
            if not {(a.name, b.name), (b.name, a.name)} & _MIRRORED.keys()
        ],
        "class names twice": _twice((one.name, one.place) for one in classes),
        "classes named by a participle": [
            one.place
            for one in classes
            if _PARTICIPLE.fullmatch(one.name) and one.name not in _DECLARED
        ],
        "module names twice": _twice((one.stem, one.path) for one in modules if _is_named(one)),
        f"functions over {LONG_FUNCTION} lines": [
            f"{module.path}:{node.lineno} {node.name}"
            for module in modules
            for node in functions(module.tree)
            if (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION
        ],
        f"complexity over {COMPLEX}": [
            f"{module.path}:{node.lineno} {node.name}"
            for module in modules
            for node in functions(module.tree)
            if complexity(node) > COMPLEX
        ],
        f"modules over {LONG_MODULE} lines": [
            one.path for one in modules if one.lines > LONG_MODULE
        ],
        "public functions without a type of their result": [
            f"{module.path}:{node.lineno} {node.name}"
            for module in modules
            if module.path.startswith(f"{PACKAGE}/verbs/api/")
            for node in module.tree.body
            if isinstance(node, ast.FunctionDef) and _returns_a_dict(node)
        ],
        "fmt: skip": [
            f"{module.path}:{number}"
            for module in modules
            for number, line in enumerate(module.text.splitlines(), 1)
            if line.endswith("# fmt: skip")
        ],
    }


def budgets(root: Path) -> dict[str, int]:
    """Lines of Python: in the package, in experiments/, and in the modules that `build`, `finish`
    and the worker import, directly or through others."""
    import grimp  # of import-linter

    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    bodies = {name for name in graph.modules if name.startswith(f"{PACKAGE}.road.steps.bodies")}
    core = {f"{PACKAGE}.verbs.api.{name}" for name in ("_build", "_finish")}
    core |= {f"{PACKAGE}.road.worker"} | bodies
    for name in tuple(core):
        core |= graph.find_upstream_modules(name)
    return {
        f"lines of {PACKAGE}/": _lines((root / PACKAGE).rglob("*.py")),
        "lines of experiments/": _lines((root / "experiments").rglob("*.py")),
        "lines that build, finish and the worker reach": _lines(_file(root, one) for one in core),
    }


def is_public_path(module: Module) -> bool:
    """Whether a module at the top of the package, or one folder below, has only the names of a
    module in a room: users import them from here."""
    others = module.tree.body[1:]
    return (
        module.path.count("/") <= 2
        and ast.get_docstring(module.tree, clean=False) is not None
        and bool(others)
        and all(isinstance(one, ast.ImportFrom) for one in others)
    )


def _module(root: Path, path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path.relative_to(root).as_posix(), text, ast.parse(text))


def _file(root: Path, module: str) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _lines(files: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def _classes(module: Module) -> Iterator[Class]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names = (
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            )
            yield Class(module, node.name, frozenset(n for n in names if not n.startswith("_")))


def _mirrored(classes: Iterable[Class]) -> Iterator[tuple[Class, Class]]:
    """Pairs of classes of two modules with nearly the same fields."""
    large = [one for one in classes if len(one.fields) >= _FIELDS]
    for a, b in itertools.combinations(large, 2):
        common = len(a.fields & b.fields)
        if a.module.path != b.module.path and common >= _ALIKE * max(len(a.fields), len(b.fields)):
            yield a, b


def _is_named(module: Module) -> bool:
    """Not an `__init__`, and not a step or its body, which have the name of the step."""
    return module.stem != "__init__" and not module.path.startswith(f"{PACKAGE}/road/steps/")


def _twice(named: Iterable[tuple[str, str]]) -> list[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in named:
        if name not in _DECLARED:
            places[name].append(place)
    return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]


def _returns_a_dict(node: ast.FunctionDef) -> bool:
    returned = "" if node.returns is None else ast.unparse(node.returns)
    return not node.name.startswith("_") and returned.startswith("dict[str, ")


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """McCabe's number of a function as radon counts it: 1, and 1 for each `if`, `for`, `while`,
    their `else` behind a loop, `except`, `assert`, `case`, conditional expression, further operand
    of `and` and `or`, `for` and `if` of a comprehension. (ruff's C901 leaves the expressions out.)
    Functions inside are counted on their own."""
    return 1 + sum(_branches(node) for node in _within(function))


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return 1 + bool(node.orelse)
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    branches = (ast.If, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)
    return int(isinstance(node, branches))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _within(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _within(child)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what makes the package hard to read.")
    parser.add_argument("--places", action="store_true", help="also what is counted")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the counts")
    asked = parser.parse_args()
    places = counts(ROOT)
    found = {name: len(at) for name, at in places.items()} | {
        name: -(-lines // _ROUND) * _ROUND for name, lines in budgets(ROOT).items()
    }
    limits = json.loads(LIMITS.read_text())
    for name, count in found.items():
        limit = limits.get(name, 0)
        print(f"{count:>7,}  {'≤' if count <= limit else '>'} {limit:>7,}  {name}")
        shown = places.get(name, ()) if asked.places or count > limit else ()
        print("".join(f"             {place}\n" for place in shown), end="")
    if asked.lower:
        lowered = {name: min(count, limits.get(name, count)) for name, count in found.items()}
        LIMITS.write_text(json.dumps(lowered, indent=1) + "\n")
    elif any(count > limits.get(name, 0) for name, count in found.items()):
        sys.exit("more than lint/limits.json allows: make it simpler, or raise the limit there, "
                 "and say why in the commit")  # fmt: skip


if __name__ == "__main__":
    main()
