"""How a run shows its progress, if the caller has no listener.

    terminal    live lines on a terminal, plain lines in a log file
    notebook    one output of the cell, which stays in the saved notebook
    log         the logger "optkit": a line for each step that ran, and warnings

Exactly one of the three is used, so nothing is reported twice.
"""

from __future__ import annotations

from optkit.ground.progress.log import Log
from optkit.ground.progress.notebook import Notebook
from optkit.ground.progress.terminal import Terminal

__all__ = ["Log", "Notebook", "Terminal", "default"]


def default() -> Notebook | Terminal | Log:
    """A Notebook in a notebook, a Terminal if stderr is a terminal, else a Log. rich decides what
    is a notebook or a terminal."""
    terminal = Terminal()
    if terminal.console.is_jupyter:
        return Notebook()
    return terminal if terminal.console.is_terminal else Log()
