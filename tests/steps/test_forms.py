"""A step whose result changes form gets another version, and a field that is added changes no key.
The fields of each step are frozen in `forms.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from optkit.facts.codec import from_json, later, to_json
from optkit.ground.execute.step import Step, StepInput, StepResult
from tests.steps.forms import WRITE, Known, form_of, frozen, problems, today

TODAY = today()


@pytest.mark.parametrize("name", TODAY)
def test_existing_entries_stay_true_and_are_found(name: str) -> None:
    now, then = TODAY[name], frozen().get(name)
    if found := list(problems(name, now, then)):
        pytest.fail("\n".join(found), pytrace=False)
    assert now == then, f"its fields or its version changed, {WRITE}"


def test_the_file_has_no_step_that_is_gone() -> None:
    assert frozen().keys() == TODAY.keys(), WRITE


@dataclass(frozen=True)
class Rules:
    ops: frozenset[str]
    kind: Literal["any", "none"] = "any"
    names: Mapping[str, int] = field(default_factory=dict)
    most: int | None = later(None)


@dataclass(frozen=True, kw_only=True)
class Sum(StepResult):
    parts: tuple[Rules, ...]
    of: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Add(Step[Sum]):
    name = "fuse"  # a step whose file is known
    version = 1

    graph: StepInput
    rules: Rules
    count: int = 1


FORM = form_of(Add)


def test_a_new_object_that_is_left_out_changes_no_key() -> None:
    then = replace(FORM, key={"count": "int = 1"})
    optional = {**then.key, "rules": "null = null", "rules.kind": "str"}
    assert not list(problems("fuse", replace(then, key=optional), then))
    needed = {**then.key, "rules.kind": "str"}
    assert list(problems("fuse", replace(then, key=needed), then))
    known = replace(then, key={**then.key, "rules": "null = null"})
    assert list(problems("fuse", replace(then, key=optional), known))  # the object was known


def test_a_form_is_what_is_written() -> None:
    rules = {"kind": "str", "most": "int | null = null", "names{}": "int", "ops[]": "str"}
    assert FORM.key == {"count": "int = 1"} | {f"rules.{path}": rules[path] for path in rules}
    assert FORM.result == {"of": "float = 0.0"} | {f"parts[].{path}": rules[path] for path in rules}
    written = to_json(Rules(frozenset({"b", "a"})))
    assert written == {"ops": ["a", "b"], "kind": "any", "names": {}}
    assert from_json(Rules, written) == Rules(frozenset({"a", "b"}))
    assert from_json(Rules, {**written, "most": 2}).most == 2  # type: ignore[dict-item]


def changed(key: Mapping[str, str | None], result: Mapping[str, str | None]) -> Known:
    """The form with other texts for these paths; None: without."""
    forms = [{**FORM.key, **key}, {**FORM.result, **result}]
    left = [{path: text for path, text in form.items() if text is not None} for form in forms]
    return replace(FORM, key=left[0], result=left[1])


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (changed({}, {"of": "int = 0"}), "form of its result changed (of was float = 0.0, and is"),
        (
            changed({}, {"most": "int"}),
            "result changed (most is new); raise its version in optkit/",
        ),
        (changed({}, {"parts[].kind": None}), "its result changed (parts[].kind is gone)"),
        (changed({"rules.kinds": "str"}, {}), "rules.kinds is new): it would be in every key"),
        (changed({"rules.kind": None}, {}), "rules.kind is gone): it was in every key"),
        (changed({"count": "int = 2"}, {}), "a key without it means another value now"),
    ],
)
def test_a_change_asks_for_another_version(now: Known, message: str) -> None:
    (found,) = problems("fuse", now, FORM)
    assert found.startswith("step fuse: ") and message in found
    assert "raise its version in optkit/road/steps/fuse.py, " + WRITE in found
    assert not list(problems("fuse", replace(now, version=2), FORM))


@pytest.mark.parametrize(
    "now",
    [
        changed({"rules.kinds": 'str = "all"'}, {}),  # left out of the keys that do not use it
        changed({"rules.most": None}, {}),
        changed({"rules.kind": "null | str"}, {}),
    ],
)
def test_other_changes_of_a_key_ask_for_nothing(now: Known) -> None:
    assert not list(problems("fuse", now, FORM))
