"""What the text of a model's Python file shows about its names and inputs; nothing of it runs."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_Assigned = Mapping[str, Sequence[ast.expr]]

SIDE = 224  # pixels; of the pictures of ImageNet
_SIDES = {"ultralytics": 640, "segmentation_models_pytorch": 512}

_NAMESPACES = ("exec", "globals", "locals", "vars")
"""Functions with which code may define names that its text does not show."""


def names(file: Path, above: frozenset[Path] = frozenset()) -> frozenset[str] | None:
    """The names that a module defines, assigns or imports. None if the text may not show all of
    them, or if the file cannot be read. `above`: the modules that import all names of this one."""
    try:
        text = file.read_text(encoding="utf-8")
        tree, table = ast.parse(text), symtable.symtable(text, str(file), "exec")
    except (OSError, SyntaxError, ValueError):
        return None
    there = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    if "__getattr__" in there or any(map(_hides_names, ast.walk(tree))):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            there.update(node.names)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            whole = _imported(file, node)
            taken = None if whole is None or whole in above else names(whole, above | {file})
            if taken is None:
                return None
            there |= taken
    return frozenset(there)


def _hides_names(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="sys", names=imported):
            return any(one.name == "modules" for one in imported)
        case ast.Attribute(value=ast.Name(id="sys" | "_sys"), attr="modules"):
            return True
        case ast.Name(id=name):
            return name in _NAMESPACES
    return False


def _imported(file: Path, node: ast.ImportFrom) -> Path | None:
    """The file of the module in `from module import …`; None if it is not found."""
    if not node.level:
        return module_file(str(node.module), file.parent)
    place = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    return next(
        (one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None
    )


def defined(file: Path) -> list[str]:
    """The public functions of a file, then its public classes."""
    return [
        node.name
        for kind in (ast.FunctionDef, ast.ClassDef)
        for node in _parsed(file).body
        if isinstance(node, kind) and not node.name.startswith("_")
    ]


def module_file(module: str, folder: Path) -> Path | None:
    """The file of an installed module, or of one in `folder`. It is found without running a package
    above it; None if that cannot be done."""
    places: Sequence[str] = [*sys.path, str(folder)]
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or ()
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def side(file: Path) -> int:
    """The usual side of pictures, in pixels, of the packages that the code imports."""
    tree = _parsed(file)
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    return next((side for name, side in _SIDES.items() if name in names), SIDE)


def forward(file: Path, function: str) -> tuple[list[str], list[str]]:
    """The required arguments of the forward of the module that `function` returns, and the other
    ones. Both are empty if the text does not show them."""
    tree = _parsed(file)
    for name in _returned(tree, function):
        model = _class(tree, name, file.parent)
        for method in model.body if model else ():
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                return _parameters(method.args)
    return [], []


def _parameters(args: ast.arguments) -> tuple[list[str], list[str]]:
    places = [argument.arg for argument in (*args.posonlyargs, *args.args)][1:]
    required = places[: len(places) - len(args.defaults)]
    by_name = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    named = {argument.arg: default is None for argument, default in by_name}
    required += [name for name, needed in named.items() if needed]
    return required, [name for name in (*places, *named) if name not in required]


def _returned(tree: ast.Module, function: str) -> Iterator[str]:
    """Names of classes that `function` may return; if it is a class, its own name."""
    yield function
    for factory in tree.body:
        if isinstance(factory, ast.FunctionDef) and factory.name == function:
            match factory.returns:
                case ast.Name(id=name) | ast.Constant(value=str(name)):
                    yield name
            returned = (node.value for node in ast.walk(factory) if isinstance(node, ast.Return))
            yield from _origins(returned, _assigned(factory))


def _origins(values: Iterable[ast.expr | None], assigned: _Assigned) -> Iterator[str]:
    """The names with which the values begin, through variables: Net, from `net = Net(...)`,
    `net = net.eval()` and `return net.half()`."""
    waiting, seen = list(values), set[str]()
    while waiting:
        value = waiting.pop(0)
        while isinstance(value, ast.Call | ast.Attribute):
            value = value.func if isinstance(value, ast.Call) else value.value
        if isinstance(value, ast.Name) and value.id not in seen:
            seen.add(value.id)
            waiting += assigned.get(value.id, ())
            if value.id not in assigned:
                yield value.id


def _assigned(factory: ast.FunctionDef) -> _Assigned:
    """Variable → the values that are assigned to it, in order."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(factory):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return values


def _class(tree: ast.Module, name: str, folder: Path) -> ast.ClassDef | None:
    """The class with this name, in the module or in the module next to it from which it is
    imported."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return statement
        names = statement.names if isinstance(statement, ast.ImportFrom) else ()
        original = next((a.name for a in names if (a.asname or a.name) == name), None)
        if isinstance(statement, ast.ImportFrom) and original is not None:
            neighbour = folder / f"{(statement.module or '').replace('.', '/')}.py"
            classes = (c for c in _parsed(neighbour).body if isinstance(c, ast.ClassDef))
            return next((c for c in classes if c.name == original), None)
    return None


def _parsed(file: Path) -> ast.Module:
    """The syntax tree of a file; an empty module if it cannot be read."""
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
