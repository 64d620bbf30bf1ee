"""The tests fail where the code is wrong: a list of mutations, and what became of each."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "eval" / "mutations" / "run.py"


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("mutations_run", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
MUTATIONS = SCRIPT.mutations()


def test_each_mutation_changes_one_place_that_is_still_there() -> None:
    assert len(MUTATIONS) >= 100
    assert len({(one.file, one.old, one.new) for one in MUTATIONS}) == len(MUTATIONS)
    for one in MUTATIONS:
        assert (ROOT / one.file).read_text().count(one.old) == 1, one
        assert one.old not in ("", one.new) and one.protects and one.tests, one
        assert all((ROOT / test).is_file() for test in one.tests), one


def test_what_was_found_is_of_this_list_and_nearly_all_are_killed() -> None:
    rows = json.loads(FILE.with_name("mutations.json").read_text())
    listed = [json.loads(json.dumps(asdict(one))) for one in MUTATIONS]
    assert [{key: row[key] for key in asdict(MUTATIONS[0])} for row in rows] == listed
    killed = sum(row["outcome"] == "killed" for row in rows)
    assert killed >= SCRIPT.LEAST * len(rows)


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    with SCRIPT.copy_of_the_project() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(MUTATIONS)))
def test_a_mutation_is_killed(index: int, project: Path) -> None:
    assert SCRIPT.outcome(MUTATIONS[index], project) == "killed", MUTATIONS[index]
