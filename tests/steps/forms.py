"""What the key and the result of each step contain, field by field, as it was with this version of
the step, in `forms.json`.

    python -m tests.steps.forms     writes today's fields, if existing entries of a store stay true

A form is the path of each field in the JSON → its type, and its default where it is left out then.
Names of classes are not in it: only what is written counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from optkit.facts import codec
from optkit.facts.assignment import Assignment
from optkit.facts.engines import BuildSpec
from optkit.ground.execute import step as steps
from optkit.ground.execute.step import Step, StepResult
from optkit.ground.recipe import Recipe
from optkit.road.steps.step_table import STEPS

FILE = Path(__file__).with_name("forms.json")
DIGEST = "manifest.digest"
WRITE = "then `python -m tests.steps.forms` writes the file"

Form = Mapping[str, str]


@dataclass(frozen=True)
class Known:
    """What is written with a version of a step; of `manifest.digest`, which has no version, the key
    alone."""

    version: int
    key: Form
    result: Form


def today() -> dict[str, Known]:
    """The forms of the steps, and of what `pipeline.identity` reads."""
    digest = {"recipe": Recipe, "assignment": Assignment, "spec": BuildSpec}
    parts = [_of_kind(kind, name) for name, kind in digest.items()]
    known = {name: form_of(step) for name, step in STEPS.items()}
    return {DIGEST: Known(0, _merged(line for part in parts for line in part), {}), **known}


def frozen() -> dict[str, Known]:
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Known(**form) for name, form in found.items()}


def form_of(step: type[Step[Any]]) -> Known:
    params = _merged(_of_fields(step, steps._of_kind(step, "param"), ""))
    kind = _result(step)
    return Known(step.version, params, _merged(_of_fields(kind, steps._facts(kind), "")))


def problems(name: str, now: Known, then: Known | None) -> Iterator[str]:
    """Why existing entries are no longer true, or no longer found."""
    if then is None or now.version != then.version:
        return
    raised = "remove its row from forms.json" if name == DIGEST else _raised(name)
    told = name if name == DIGEST else f"step {name}"
    for path, change in changes(now.result, then.result):
        yield f"{told}: the form of its result changed ({path} {change}); {raised}, {WRITE}"
    for path, change in changes(now.key, then.key):
        if _in_new_object(path, now.key, then.key):
            continue
        if why := _changes_keys(now.key.get(path), then.key.get(path)):
            yield f"{told}: its key changed ({path} {change}): {why}. Else {raised}, {WRITE}"


def _in_new_object(path: str, now: Form, then: Form) -> bool:
    """Whether the field is part of an object, or an item of a list or of a mapping, that is new and
    left out while it has its default."""
    parts = path.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    above += [path.removesuffix(items) for items in ("[]", "{}") if path.endswith(items)]
    return any(one not in then and _default(now.get(one, "")) is not None for one in above)


def _raised(name: str) -> str:
    return f"raise its version in {STEPS[name].__module__.replace('.', '/')}.py"


def _changes_keys(now: str | None, then: str | None) -> str | None:
    """Why a change of a field in the key matters to existing entries, and what to do."""
    if then is None and now is not None and _default(now) is None:
        return (
            "it would be in every key, and no entry would be found any more; declare it by "
            "`later(default)` of optkit.facts.codec, for a recipe of "
            "optkit/ground/recipe/sections.py"
        )
    if now is None and then is not None and _default(then) is None:
        return "it was in every key, and no entry would be found any more"
    if now is not None and then is not None and _default(now) != _default(then):
        return "a key without it means another value now; keep its default"
    return None


def changes(now: Form, then: Form) -> Iterator[tuple[str, str]]:
    """The path of each field that differs, and how."""
    for path in sorted(now.keys() | then.keys()):
        if path not in then:
            yield path, "is new"
        elif path not in now:
            yield path, "is gone"
        elif now[path] != then[path]:
            yield path, f"was {then[path]}, and is {now[path]}"


def _default(text: str) -> str | None:
    """The default in the text of a type, if the field is left out then."""
    _, equals, default = text.partition(" = ")
    return default if equals else None


def _result(step: type[Step[Any]]) -> type[StepResult]:
    bases = [base for own in step.__mro__ for base in vars(own).get("__orig_bases__", ())]
    kinds = {kind for base in bases for kind in get_args(base) if isinstance(kind, type)}
    (kind,) = kinds
    assert issubclass(kind, StepResult)
    return kind


Line = tuple[str, str]


def _merged(lines: Iterator[Line]) -> dict[str, str]:
    """Each path once: a union may have the same field in several members."""
    found: dict[str, set[str]] = {}
    for path, text in lines:
        found.setdefault(path, set()).add(text)
    return {path: " | ".join(sorted(found[path])) for path in sorted(found)}


def _of_fields(cls: type, known: Sequence[Any], path: str) -> Iterator[Line]:
    """Fields that are left out if they have their default value (`execute.step`)."""
    for each in known:
        kind = codec.hints(cls)[each.name]
        if each.metadata.get("spread"):
            for member in steps._members(kind):
                assert isinstance(member, type)
                yield from _of_fields(member, fields(member), path)
            continue
        left_out = "" if each.metadata.get("always") else _written_default(steps._default(each))
        name = steps._name(each)
        yield from _field(kind, path + name, left_out, ())


def _written_default(value: object) -> str:
    return "" if value is MISSING else f" = {json.dumps(codec.to_json(value), sort_keys=True)}"


def _field(kind: object, path: str, default: str, above: tuple[object, ...]) -> Iterator[Line]:
    """The lines of a field; its default is in the first."""
    lines = _merged(_of_kind(kind, path, above))
    if default:
        lines[path] = lines.get(path, "object") + default
    yield from lines.items()


def _of_kind(kind: Any, path: str, above: tuple[object, ...] = ()) -> Iterator[Line]:
    """The lines of an annotation."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in above:
        yield path, "as above"
    elif origin is Annotated:
        yield from _of_kind(arguments[0], path, above)
    elif origin in (Union, UnionType):
        for member in arguments:
            yield from _of_kind(member, path, above)
    elif origin is Literal:
        yield from ((path, type(value).__name__) for value in arguments)
    elif origin is tuple and arguments[1:] != (...,):
        for place, item in enumerate(arguments):
            yield from _of_kind(item, f"{path}[{place}]", above)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from _of_kind(arguments[1], path + "{}", above)
    elif isinstance(origin, type) and issubclass(origin, Sequence | Set):
        yield from _of_kind(arguments[0], path + "[]", above)
    elif isinstance(kind, type):
        yield from _of_class(kind, path, above)
    else:
        yield path, "any"


def _of_class(kind: type, path: str, above: tuple[object, ...]) -> Iterator[Line]:
    above = (*above, kind)
    written = getattr(kind, "to_json", None)
    if written is not None and written.__annotations__["return"] == "str":
        yield path, "str"
    elif issubclass(kind, BaseModel):
        for name, facts in kind.model_fields.items():
            text = _written_default(facts.default) if facts.exclude_if is not None else ""
            yield from _field(facts.annotation, f"{path}.{name}", text, above)
    elif is_dataclass(kind):
        for each in fields(kind):
            text = _written_default(each.default) if "later" in each.metadata else ""
            yield from _field(codec.hints(kind)[each.name], f"{path}.{each.name}", text, above)
    elif issubclass(kind, tuple):  # a NamedTuple
        for place, item in enumerate(codec.hints(kind).values()):
            yield from _of_kind(item, f"{path}[{place}]", above)
    elif issubclass(kind, Enum | Path):
        yield path, "str"
    else:
        yield path, {"NoneType": "null", "object": "any"}.get(kind.__name__, kind.__name__)


def main() -> None:
    now, then = today(), frozen() if FILE.exists() else {}
    found = [text for name, form in now.items() for text in problems(name, form, then.get(name))]
    if found:
        raise SystemExit("\n".join(found))
    data = {
        name: {"version": form.version, "key": form.key, "result": form.result}
        for name, form in sorted(now.items())
    }
    FILE.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
