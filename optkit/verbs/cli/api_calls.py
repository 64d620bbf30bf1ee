"""Common parts of commands that call the API."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from optkit.facts.request import Request
from optkit.ground.progress.terminal import Terminal
from optkit.ground.workspace import Workspace
from optkit.verbs.cli.command_output import Output, keep_stdout

if TYPE_CHECKING:
    from optkit.ground.recipe import Recipe


def recipe(request: Request, workspace: Workspace, output: Output, *, dry: bool = False) -> Recipe:
    """The recipe that a request describes. If shapes are given, the model may have to be read; the
    store keeps it, unless `dry`."""
    from optkit.road import jobs  # loads the pipeline, which many commands do not need

    here = replace(workspace, executor=None)
    # only if it is needed, because a killed command leaves the folder behind
    with tempfile.TemporaryDirectory() if dry else nullcontext() as folder:
        if folder is not None:
            here = replace(here, cache=folder, remote="")
        with output.terminal() as terminal:
            return jobs.resolve(request, workspace=replace(here, listener=terminal))


def reporting(workspace: Workspace, terminal: Terminal) -> Workspace:
    """The workspace, whose steps are shown on the terminal."""
    if workspace.executor is not None:  # Ray and its daemons may print to stdout
        keep_stdout()
    return replace(workspace, listener=terminal)
