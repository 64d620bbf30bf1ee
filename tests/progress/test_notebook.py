"""Steps in a notebook: one output of the cell, which changes and lets no name act."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.ground.progress import notebook
from optkit.ground.progress.notebook import Notebook


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The states of the one output."""
    states: list[dict[str, str]] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id and not states
        states.append(data)
        return SimpleNamespace(update=lambda data, raw: states.append(data))

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(notebook, "_PAUSE", -1)
    return states


def test_one_output_shows_what_ran_what_runs_and_what_was_there(drawn: Any) -> None:
    ears = Notebook()
    ears.start("export", "export <b>net</b>")
    ears.progress("capturing \x1b[2J", 0.25)
    assert '<progress max="1" value="0.250"' in drawn[-1]["text/html"]
    assert "export &lt;b&gt;net&lt;/b&gt;: capturing \ufffd[2J" in drawn[-1]["text/html"]
    ears.done("export", "export <b>net</b>", False, 1.25)
    ears.done("fuse", "fuse", True, 0.0)
    ears.note("a note")
    ears.start("compile", "compile")
    ears.failed("compile", "compile")
    ears.failed("bench", "a step that did not start")
    last = drawn[-1]
    assert "<progress" not in last["text/html"] and "<b>" not in last["text/html"]
    assert last["text/plain"].splitlines() == [
        "     1.2 s  export <b>net</b>",
        "      note  a note",
        "    failed  compile",
        "       1    step in the store",
    ]


def test_progress_is_drawn_a_few_times_a_second(
    drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "_PAUSE", 60)
    ears = Notebook()
    ears.progress("no step runs", 0.5)
    ears.start("bench", "bench")
    for run in range(100):
        ears.progress(f"run {run}", run / 100)
    assert len(drawn) == 1
