"""The values of another tool's flags, in optkit's units and names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from pydantic import JsonValue

from optkit.facts.errors import UsageError
from optkit.ground.recipe.shape_syntax import parse_shapes

_UNITS = MappingProxyType({"B": 1, "K": 2**10, "M": 2**20, "G": 2**30})
_LITERAL = re.compile(r"[\w/:\-]|\s")

Shapes = dict[str, tuple[int, ...]]


class Refusal(Exception):
    """A value that optkit understands and cannot follow."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def value(kind: str, text: str) -> JsonValue:
    """The value of a recipe's key. Raises ValueError for text of another form, and Refusal."""
    return READERS[kind](text)


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is neither True nor False")
    return text.lower() == "true"


def shapes(text: str) -> Shapes:
    """ "ids:1x128,'a:0':1x3,length:scalar" → {"ids": (1, 128), "a:0": (1, 3)}. A scalar has no
    sizes and is left out. Raises ValueError, and Refusal for a name with a wildcard."""
    sized = []
    for item in text.split(","):
        name, colon, sizes = item.rpartition(":")
        name = name.strip("'")
        if not colon or not name:
            raise ValueError(f"{item!r} is not name:AxBxC")
        if "*" in name:
            raise Refusal("optkit needs the names of the inputs", "write each name without *")
        if sizes not in ("", "scalar"):
            sized.append(f"{name}:{sizes}")
    try:
        return parse_shapes(",".join(sized)) if sized else {}
    except UsageError as error:
        raise ValueError(error.message) from None


def written(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes in the syntax of optkit's options."""
    return ",".join(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items())


def picture(text: str) -> tuple[int, int]:
    """Height and width, of "640", "480,640" or "[480, 640]"."""
    found = re.fullmatch(r"[\[(]?\s*([1-9]\d*)(?:\s*,\s*([1-9]\d*))?\s*[\])]?", text)
    if found is None:
        raise ValueError(f"{text!r} is neither a size nor height,width")
    return int(found[1]), int(found[2] or found[1])


def layers(text: str) -> dict[str, str]:
    """ "conv1:fp16,*head*:fp32" → pattern of node names → the tool's name of a precision, in the
    order in which the last one that matches counts."""
    found: dict[str, str] = {}
    for item in text.split(","):
        name, colon, precision = item.rpartition(":")
        if not colon or not name:
            raise ValueError(f"{item!r} is not layer:precision")
        pattern = _pattern(name.strip("'"))
        found.pop(pattern, None)
        found[pattern] = precision
    return found


def patterns(text: str) -> dict[str, str]:
    """Regular expressions of node names that stay in float → the same as patterns of a recipe."""
    return {_of_regex(word): "fp16" for word in text.split()}


def _pattern(name: str) -> str:
    """A name, in which only * is a wildcard, as a pattern of a recipe."""
    return re.sub(r"([\[?])", r"[\1]", name)


def _of_regex(text: str) -> str:
    """A regular expression that matches the beginning of a name (the whole name if it ends with $),
    of letters, `.`, `.*` and escaped points."""
    shape = text.removeprefix("^").removesuffix("$")
    found, place = "", 0
    while place < len(shape):
        two = shape[place : place + 2]
        if two == ".*":
            found, place = found + "*", place + 2
        elif two == "\\.":
            found, place = found + ".", place + 2
        elif shape[place] == ".":
            found, place = found + "?", place + 1
        elif _LITERAL.match(shape[place]):
            found, place = found + shape[place], place + 1
        else:
            raise Refusal(
                f"a recipe has no pattern for the regular expression {text}",
                "name the nodes with * and ?, e.g. --set 'quantization.nodes={\"*head*\":fp16}'",
            )
    return found if text.endswith("$") or found.endswith("*") else f"{found}*"


def _pools(text: str) -> int:
    """Bytes of `workspace:SIZE`; without a unit: MiB, as for trtexec."""
    found: int | None = None
    for item in text.split(","):
        pool, colon, size = item.partition(":")
        if not colon:
            raise ValueError(f"{item!r} is not pool:SIZE")
        if pool != "workspace":
            reason = f"optkit limits the pool workspace and not {pool}"
            raise Refusal(reason, "give workspace alone")
        found = _bytes(size, "M")
    assert found is not None  # split gives one item at least
    return found


def _bytes(text: str, unit: str) -> int:
    """Bytes of a size with one of the units B, K, M and G (powers of 1024), or with `unit`."""
    number = text
    if text[-1:].upper() in _UNITS:
        number, unit = text[:-1], text[-1].upper()
    return int(_number(number) * _UNITS[unit])


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{text!r} is not a number")
    return number


def _integer(text: str) -> int:
    if not re.fullmatch(r"[-+]?\d+", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _seconds(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise Refusal("optkit measures for a limited time", "leave it out, or give seconds")
    return float(number)


def _milliseconds(text: str) -> float:
    number = _number(text)
    if number < 0:
        raise ValueError("a time is not negative")
    return float(number / 1000)


READERS: Mapping[str, Callable[[str], JsonValue]] = MappingProxyType(
    {
        "boolean": boolean,
        "integer": _integer,
        "pools": _pools,
        "mebibytes": lambda text: _bytes(text, "M"),
        "gibibytes": lambda text: _bytes(text, "G"),
        "seconds": _seconds,
        "milliseconds": _milliseconds,
        "picture": lambda text: [*picture(text)],
        "layers": lambda text: dict(layers(text)),
        "patterns": lambda text: dict(patterns(text)),
    }
)
"""Kind of value → its reader. Values of other kinds stay text."""
