"""What users read after their mistakes: a list of mistakes, and the messages that were kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import ROOT, script

SCRIPT = script("experiments/messages/run.py")
MISTAKES = SCRIPT.mistakes()


def test_a_hundred_mistakes_each_with_one_command_and_the_right_exit_code() -> None:
    assert len(MISTAKES) == len({one.id for one in MISTAKES}) == 100
    assert sum(one.new for one in MISTAKES) == 26
    for one in MISTAKES:
        assert (one.command is None) != (one.python is None), one.id
        assert one.did and one.code in (0, 2, 4, 5, 7, 8), one.id


def test_the_kept_messages_are_of_these_mistakes_and_none_is_a_traceback() -> None:
    kept = SCRIPT.results()
    assert [(one.id, one.did, one.right) for one in kept] == [
        (one.id, one.did, one.code) for one in MISTAKES
    ]
    assert {one.id: one.fault for one in kept if one.fault} == {}
    assert (ROOT / "experiments/messages/results.md").read_text() == SCRIPT.page(kept)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"code": 5}, "exit code 5, not 2"),
        ({"code": 1, "right": 1}, "a traceback"),
        ({"stderr": "Traceback (most recent call last):\n"}, "a traceback"),
        ({"stderr": " \n"}, "no message"),
    ],
)
def test_the_fault_of_an_outcome(changes: dict[str, object], fault: str | None) -> None:
    good = {"id": "one", "did": "erred", "new": False, "run": "optkit", "right": 2, "code": 2,
            "stderr": "  1.0 s  export\nerror: x: wrong\nhint: y\n", "stdout": ""}  # fmt: skip
    outcome = SCRIPT.Outcome(**(good | changes))
    assert outcome.fault == fault
    assert changes or outcome.message == "error: x: wrong\nhint: y"


@pytest.fixture(scope="module")
def workshop() -> Iterator[Any]:
    with SCRIPT.workshop() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=[one.id for one in MISTAKES])
def test_a_mistake_has_a_message_and_the_right_exit_code(mistake: Any, workshop: Any) -> None:
    outcome = workshop.outcome(mistake)
    assert outcome.fault is None, outcome
    assert str(Path(workshop.folder)) not in outcome.stderr
