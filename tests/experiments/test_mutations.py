"""The tests fail where the code is wrong: a list of mutations, and what became of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.scripts import ROOT, script

RESULTS = ROOT / "experiments/mutations/mutations.json"
SCRIPT = script("experiments/mutations/run.py")
MUTATIONS = SCRIPT.mutations()


def test_each_mutation_changes_one_place_that_is_still_there() -> None:
    assert len(MUTATIONS) >= 100
    assert len({(one.file, one.old, one.new) for one in MUTATIONS}) == len(MUTATIONS)
    for one in MUTATIONS:
        assert (ROOT / one.file).read_text().count(one.old) == 1, one
        assert one.old not in ("", one.new) and one.protects and one.tests, one
        assert all(is_there(test) for test in one.tests), one


def is_there(test: str) -> bool:
    """Whether there is this file of tests, or this one test in a file."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and f"def {name}" in (ROOT / file).read_text()


def test_what_was_found_is_of_this_list_and_nearly_all_are_killed() -> None:
    rows = json.loads(RESULTS.read_text())
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
