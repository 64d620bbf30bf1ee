"""Checks whether a `.pt2` archive is safe to load, with an allow-list, because torch's loader is
not safe.

    root/models/model.json                  the program
    root/data/weights|constants/…           raw bytes, and a JSON that describes them
    root/data/sample_inputs/model.pt        a pickle, always

`torch.export.load` unpickles everything that does not load as plain weights, imports compiled
libraries, evaluates shape expressions and guards as Python, resolves operators by attribute path
from `torch`, and writes names into source code that it executes. So before it gets the file, every
member must be on the list, the pickle must load under `weights_only`, and every string of the
program must have a harmless form. Files that torch.export.save writes for an ordinary model are
accepted.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from optkit.facts.errors import UnsafeFile

_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|(\.data/)?version|\.data/serialization_id|extra/.*"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)",
    re.DOTALL,
)
_PROGRAM = "models/model.json"
_SAMPLES = "data/sample_inputs/model.pt"
_TABLES = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_REFUSED = {
    "data/aotinductor/": "compiled native code",
    "data/constants/custom_obj_": "a pickled object",
    "data/constants/opaque_obj_": "a pickled object",
    "data/weights/": "weights as a pickle",
    "data/constants/": "constants as a pickle",
    "models/": "more than one program",
}

# Operators: only arithmetic. `operator.call` or `methodcaller` would give access to any function.
_ARITHMETIC = (
    "abs|add|and_|eq|floordiv|ge|getitem|gt|index|invert|is_|is_not|le|lshift|lt|mod|mul|ne|neg|"
    "not_|or_|pos|pow|rshift|sub|truediv|xor"
)
_CONTROL = "cond|scan|while_loop|wrap_with_autocast|wrap_with_set_grad_enabled"
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+\.[A-Za-z]\w*"
    rf"|torch\.ops\.higher_order\.({_CONTROL})"
    rf"|_operator\.({_ARITHMETIC})"
    r"|math\.[a-z]\w*|torch\._?sym_[a-z]\w*"
)
_NAME = re.compile(r"[\w.]*", re.ASCII)  # becomes a name in generated source code
# of a parameter, a device, …: generated source code only contains it in quotes
_PATH = re.compile(r"[\w.-]*", re.ASCII)
_TEXT = re.compile(r"[\w .,<>-]{0,256}", re.ASCII)  # an operator's string: "tanh", "bij,bjk->bik"

# Shape expressions, as sympy prints them: these names are called; all others stay symbols.
_FUNCTION = re.compile(
    r"Symbol|Integer|Rational|Float|Add|Mul|Pow|Mod|Max|Min|Abs|And|Or|Not|(Un)?[Ee]quality|Eq|Ne"
    r"|Lt|Le|Gt|Ge|(Strict)?(Less|Greater)Than|ceiling|floor|Piecewise|ExprCondPair|Where|Identity"
    r"|(Floor|Clean|Ceil|IntTrue|FloatTrue)Div|(Ceil|Floor|Trunc|Round)ToInt|TruncToFloat|ToFloat"
    r"|ModularIndexing|PythonMod|[LR]Shift|PowByNatural|FloatPow|RoundDecimal"
    r"|IsNonOverlappingAndDenseIndicator"
)
_GUARD_METHODS = frozenset({"size", "dim", "numel", "stride", "storage_offset"})
_TREES = frozenset(
    {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
)
_IGNORED = frozenset({"metadata", "torch_version", "schema_version", "opset_version"})


def check(path: Path) -> None:
    """Raise UnsafeFile, with the reason and the place, unless `path` is a .pt2 that is safe to
    load."""
    try:
        read = _members(path)
        _check_samples(read(_SAMPLES))
        for table in _TABLES:
            _check_table(json.loads(read(table)), table)
        _check_program(json.loads(read(_PROGRAM)), _PROGRAM)
    except UnsafeFile as error:
        raise UnsafeFile(error.message, where=f"{path}: {error.where}", hint=_HINT) from None
    except (
        OSError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        KeyError,
        RecursionError,
    ) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsafeFile(f"not a .pt2 archive: {problem}", where=str(path), hint=_HINT) from error


_HINT = (
    "write it with torch.export.save from torch 2.9 or later, for a model of plain tensors; "
    "or give the model as a Python factory with safetensors weights"
)


def _members(path: Path) -> Callable[[str], bytes]:
    """Check the list of members; returns how torch itself reads one of them."""
    from torch.export.pt2_archive import PT2ArchiveReader

    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    roots = {info.filename.partition("/")[0] for info in infos}
    names = [info.filename.partition("/")[2] for info in infos]
    if len(roots) != 1 or len(set(names)) != len(names):
        raise UnsafeFile(
            "it has members outside the folder of the archive, or a member twice", where="archive"
        )
    for info, name in zip(infos, names, strict=True):
        if not _MEMBERS.fullmatch(name):
            reasons = (why for prefix, why in _REFUSED.items() if name.startswith(prefix))
            raise UnsafeFile(f"holds {next(reasons, 'an unknown member')}", where=name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise UnsafeFile(
                "the member is compressed; torch stores members uncompressed", where=name
            )
    reader = PT2ArchiveReader(str(path))
    if set(reader.get_file_names()) != set(names):
        raise UnsafeFile("torch would read other members than those in the list", where="archive")

    def read(name: str) -> bytes:
        if name not in names:
            raise UnsafeFile("it is missing", where=name)
        return bytes(reader.read_bytes(name))

    return read


def _check_samples(pickled: bytes) -> None:
    import torch

    if not pickled:
        return
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception as error:  # UnpicklingError, and any exception because of hostile bytes
        problem = str(error).partition("\n")[0]
        raise UnsafeFile(
            f"the sample inputs are no plain tensors: {problem}", where=_SAMPLES
        ) from None


def _check_table(table: Any, where: str) -> None:
    for name, entry in table["config"].items():
        if entry["use_pickle"]:
            raise UnsafeFile(f"{name!r} is a pickled object", where=where)
    _check_program(table, where)


def _check_program(value: object, where: str, key: str | None = None) -> None:
    """Check each string in plain JSON by the rule for its key."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not _PATH.fullmatch(name):
                raise UnsafeFile(f"name {name[:80]!r} is not allowed", where=where)
            if name == "as_custom_obj":
                raise UnsafeFile("it uses a custom object", where=where)
            if name not in _IGNORED:
                _check_program(item, where, name)
    elif isinstance(value, list):
        for item in value:
            _check_program(item, where, key)
    elif isinstance(value, str) and not _harmless(value, key):
        raise UnsafeFile(f"{key} {value[:120]!r} is not allowed", where=where)


def _harmless(text: str, key: str | None) -> bool:
    if key in ("target", "as_operator"):
        return _OPERATOR.fullmatch(text) is not None
    if key == "expr_str":
        return _is_arithmetic(text, guard=False)
    if key == "guards_code":
        return _is_arithmetic(text, guard=True)
    if key in ("in_spec", "out_spec"):
        return _is_plain_tree(json.loads(text)[1])
    if key in ("as_string", "as_strings"):
        return _TEXT.fullmatch(text) is not None
    form = _NAME if key in ("name", "forward_arg_names") else _PATH
    return form.fullmatch(text) is not None


def _is_arithmetic(text: str, *, guard: bool) -> bool:
    """Whether Python source only computes: numbers, names, operators and known functions."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return all(_computes(node, guard) for node in _outer_nodes(tree))


def _outer_nodes(tree: ast.AST) -> Iterable[ast.AST]:
    """All nodes but the single string of Symbol('s0') or Float('1.5'), and what is called."""
    yield tree
    if isinstance(tree, ast.Call):
        literal = isinstance(tree.func, ast.Name) and tree.func.id in ("Symbol", "Float")
        first = tree.args[:1] if literal else []
        plain = [a for a in first if isinstance(a, ast.Constant) and _NAME.fullmatch(str(a.value))]
        rest = [argument for argument in tree.args if argument not in plain]
        base = [tree.func.value] if isinstance(tree.func, ast.Attribute) else []
        children: Iterable[ast.AST] = [*base, *rest, *(k.value for k in tree.keywords)]
    elif isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Constant):
        children = [tree.value]
    else:
        children = ast.iter_child_nodes(tree)
    for child in children:
        yield from _outer_nodes(child)


def _computes(node: ast.AST, guard: bool) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float | None)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return guard and node.func.attr in _GUARD_METHODS
        return isinstance(node.func, ast.Name) and _FUNCTION.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Subscript):
        return guard
    if isinstance(node, ast.Name):
        return "__" not in node.id
    allowed = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple,
               ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)  # fmt: skip
    return isinstance(node, allowed)


def _is_plain_tree(tree: Any) -> bool:
    """A pytree of tuples, lists and dicts; other kinds import modules by name."""
    context = tree["context"]
    keys = json.loads(context) if context else None
    plain = keys is None or all(isinstance(k, int) or _is_name(k) for k in keys)
    return (
        tree["type"] in _TREES and plain and all(_is_plain_tree(c) for c in tree["children_spec"])
    )


def _is_name(key: object) -> bool:
    return isinstance(key, str) and _NAME.fullmatch(key) is not None
