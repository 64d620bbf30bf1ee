"""Conditions on sizes that torch.export cannot prove for a whole range, checked size by size.

torch refuses an axis if one of its conditions may fail within the declared range. Some of them
compare strides, e.g. (n // 320)**2 >= n // 320 for an attention mask of sound: they are true for
every size of the range, but torch's solver does not see it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

import numpy as np

_LARGEST = 1 << 22  # sizes that are checked
_CAPTURED = 2  # torch's messages leave out this least size; the size 1 is compared after the export
_GUARD = re.compile(
    r"Not all values of (?P<axis>\w+) = (?P<size>L\[.+?\]\.size\(\)\[\d+\]) in the specified range "
    r"(?:(?P<low>\d+) <= )?\w+ <= (?P<high>\d+) satisfy the generated guard (?P<guard>.+)"
)
_SPECIALIZED = "Specializations unexpectedly required"  # follows, as the solver's conclusion,
_SOLVED = "solving the guards generated for "  # with the size in further lines
_PLAIN = (
    ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_FUNCTIONS = {
    "trunc": np.trunc,
    "floor": np.floor,
    "sym_float": np.float64,
    "max": np.maximum,
    "min": np.minimum,
}
_MODULE = re.compile(r"\b(math|torch)\.(?=(trunc|floor|sym_float)\()")


def hold(text: str, multiples: Mapping[str, int]) -> bool:
    """Whether every condition in torch's message about violated constraints is true for every size
    in its range that is a multiple of the axis's number in `multiples`. False if one of them is not
    understood."""
    reasons = [line.strip(" -") for line in text.splitlines() if line.startswith("  - ")]
    guards = [reason for reason in reasons if not reason.startswith(_SOLVED)]
    return bool(guards) and all(_holds(guard, multiples) for guard in guards)


def _holds(reason: str, multiples: Mapping[str, int]) -> bool:
    match = _GUARD.fullmatch(reason.partition(_SPECIALIZED)[0].removesuffix("."))
    if match is None:
        return False
    low, high = int(match["low"] or _CAPTURED), int(match["high"])
    guard = _MODULE.sub("", match["guard"].replace(match["size"], "n"))
    try:
        tree = ast.parse(guard, mode="eval")
    except SyntaxError:
        return False
    of = multiples.get(match["axis"], 1)
    low = -(-low // of) * of
    sizes = np.arange(low, high + 1, of, dtype=np.int64) if high - low < _LARGEST else None
    parts = [tree.body]
    if isinstance(tree.body, ast.BoolOp) and isinstance(tree.body.op, ast.And):
        parts = tree.body.values
    return sizes is not None and all(_is_true(ast.Expression(part), sizes) for part in parts)


def _is_true(tree: ast.Expression, sizes: np.ndarray) -> bool:
    """Whether one comparison is true for all these sizes n."""
    if not all(_is_plain(node) for node in ast.walk(tree)):
        return False
    with np.errstate(divide="raise"):
        try:
            code = compile(tree, "guard", "eval")
            return bool(np.all(eval(code, {**_FUNCTIONS, "n": sizes})))
        except (FloatingPointError, ZeroDivisionError):
            return False


def _is_plain(node: ast.AST) -> bool:
    """Whether it is part of one comparison of numbers and of the size."""
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1
    if isinstance(node, ast.Name):
        return node.id == "n" or node.id in _FUNCTIONS
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return isinstance(node, _PLAIN)
