"""Who shows the progress of a call without a listener, and what the logger gets."""

from __future__ import annotations

import logging

import pytest
from rich.console import Console

import optkit
from optkit.ground import progress
from optkit.ground.execute.runner import Listener
from optkit.ground.progress import Log, Notebook, Terminal
from optkit.ground.workspace import Silent


@pytest.mark.parametrize(
    ("terminal", "notebook", "shown"),
    [(False, False, Log), (True, False, Terminal), (False, True, Notebook)],
)
def test_exactly_one_listener_is_chosen(
    terminal: bool, notebook: bool, shown: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    monkeypatch.setattr(progress.terminal, "stderr", lambda: _console(notebook))
    assert type(optkit.Workspace().runner().listener) is shown


def _console(notebook: bool) -> Console:
    console = Console()
    console.is_jupyter = notebook
    return console


def test_a_caller_can_have_silence_or_a_listener_of_their_own() -> None:
    assert type(optkit.Workspace(listener=None).runner().listener) is Silent
    own: Listener = Silent()
    assert optkit.Workspace(listener=own).runner().listener is own


def test_the_logger_gets_a_line_for_each_step(caplog: pytest.LogCaptureFixture) -> None:
    ears = Log()
    caplog.set_level(logging.DEBUG, "optkit")
    ears.start("fuse", "fuse")
    ears.progress("rule 1 of 2", 0.5)
    ears.done("fuse", "fuse 100%s \x1b[2J", False, 1.25)
    ears.done("export", "export net", True, 0.0)
    ears.failed("compile", "compile")
    ears.note("a note")
    assert caplog.record_tuples == [
        ("optkit", logging.INFO, "fuse 100%s \ufffd[2J: 1.2 s"),
        ("optkit", logging.DEBUG, "in the store: export net"),
        ("optkit", logging.WARNING, "a note"),
    ]
