"""`optkit mcp`: the public functions as tools for agents."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from optkit.facts.errors import StorageError, ToolchainMissing
from optkit.ground.workspace import Workspace


def serve(workspace: Workspace) -> None:
    """Serve over stdin and stdout until the client closes them."""
    if find_spec("mcp") is None:
        raise ToolchainMissing(
            "the package mcp is not installed", where="optkit mcp", hint="pip install 'optkit[mcp]'"
        )
    if sys.stdin is None or sys.stdout is None:
        raise StorageError(
            "stdin or stdout is closed", where="optkit mcp", hint="a client is on their other ends"
        )
    from optkit.verbs.tool_server import server

    server(workspace).run("stdio")
