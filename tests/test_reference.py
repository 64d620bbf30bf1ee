"""The generated pages of docs/reference are those of the code."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import click
import pytest
from pydantic import BaseModel

from optkit.facts import documents, errors
from optkit.facts.documents.explanation import Rule
from optkit.ground.devices import table
from optkit.ground.recipe import Bench, Calibration, Compiler, Eval, Gates, Input, Model
from optkit.ground.recipe.sections import Axis, Placement, Quantization
from optkit.show.explanation import RULES
from optkit.verbs.cli import optkit
from tests.scripts import ROOT, script

FOLDER = ROOT / "docs/reference"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "site"))
        module: ModuleType = script("site/reference.py")
    return module


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_pages_are_those_of_the_code(reference: ModuleType) -> None:
    """`python site/reference.py` writes them."""
    assert reference.differing() == [], "python site/reference.py writes these pages anew"


def test_a_page_that_differs_is_named(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("command_line.md", "exit_codes.md", "findings.md")
    pages = {name: reference.PAGES[name] for name in chosen}
    (tmp_path / "command_line.md").write_text(text("command_line.md"), encoding="utf-8")
    (tmp_path / "exit_codes.md").write_text(text("exit_codes.md") + "x\n", encoding="utf-8")
    monkeypatch.setattr(reference, "PAGES", pages)
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.differing() == ["exit_codes.md", "findings.md"]


def test_every_command_and_option_is_listed() -> None:
    page = text("command_line.md")
    sections = dict(zip(*[iter(re.split(r"^## (.+)\n", page, flags=re.M)[1:])] * 2, strict=True))
    assert "optkit build" in sections and "optkit cache verify" in sections
    for name, command in optkit.commands.items():
        group = isinstance(command, click.Group)
        assert f"optkit {name}" in sections
        for parameter in () if group else command.params:
            if isinstance(parameter, click.Option):
                assert f"`{parameter.opts[-1]}`" in sections[f"optkit {name}"], parameter.opts
                assert parameter.help, f"{parameter.opts} of {name}"


def test_every_key_of_a_recipe_is_listed() -> None:
    page = text("recipe_keys.md")
    parts: dict[str, type[BaseModel]] = {
        "model": Model, "inputs.NAME": Input, "axes.NAME": Axis, "calibration": Calibration,
        "quantization": Quantization, "quantization.placement": Placement, "eval": Eval,
        "gates": Gates, "compiler": Compiler, "bench": Bench,
    }  # fmt: skip
    for place, part in parts.items():
        for key in part.model_fields:
            assert re.search(rf"^\| `{re.escape(place)}\.{key}` \|.* \| \S.+ \|$", page, re.M), key


def test_commands_that_print_an_object_have_the_option_for_it(reference: ModuleType) -> None:
    printed = reference.json_documents.PRINTED
    assert set(printed) == set(documents.NAMES)
    checked = 0
    for told in printed.values():
        for words in re.findall(r"`optkit ([a-z -]+)", told):
            command: click.Command = optkit
            for word in words.split():
                if isinstance(command, click.Group):
                    command = command.commands[word]
                elif word.startswith("--"):
                    assert any(word in one.opts for one in command.params), words
            assert any("--json" in parameter.opts for parameter in command.params), words
            checked += 1
    assert checked == 31


@pytest.mark.parametrize("name", documents.NAMES)
def test_every_key_of_an_object_has_a_description(name: str) -> None:
    """Or holds a part that has one."""
    schema = documents.schema(name)
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    for part in (schema, *definitions.values()):
        for key, value in part.get("properties", {}).items():
            assert "description" in value or "$ref" in str(value), key


def test_every_target_and_figure_is_listed() -> None:
    page = text("target_table.md")
    for name in table.data_names():
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        target = table.read(name)
        for fact in (*target.facts.values(), *target.peaks.values(), *target.kernels.values()):
            assert f"| {fact.source} |" in section
            assert fact.value is None or f"| {fact.value}" in section


def test_findings_are_those_that_the_rules_report() -> None:
    assert {rule.name for rule in RULES} == set(get_args(Rule))
    for rule in RULES:
        assert f'"{rule.name}"' in inspect.getsource(rule.find), rule.name
        assert f"| `{rule.name}` |" in text("findings.md")


def test_evidence_of_findings_is_what_their_rule_says() -> None:
    """In the examples of what `optkit explain` and a build write."""
    said = {rule.name: rule.evidence for rule in RULES}
    found = [
        finding
        for file in (ROOT / "tests/documents/written").glob("*.json")
        for finding in json.loads(file.read_text(encoding="utf-8")).get("findings", ())
        if "rule" in finding
    ]
    assert found
    for finding in found:
        assert finding["cost"]["evidence"] in said[finding["rule"]]


def test_every_error_is_listed_with_its_exit_code() -> None:
    page = text("exit_codes.md")
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.OptkitError):
            row = rf"^\| \[{error.exit_code}\]\(.* `{error.__name__}`.* \| `{error.code}` \|"
            assert re.search(row, page, re.M), error
