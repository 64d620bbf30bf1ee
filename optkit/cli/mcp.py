"""`optkit mcp`: the public functions as tools for agents."""

from __future__ import annotations

from importlib.util import find_spec

from optkit.errors import ToolchainMissing
from optkit.workspace import Workspace


def serve(workspace: Workspace) -> None:
    """Serve over stdin and stdout until the client closes them."""
    if find_spec("mcp") is None:
        raise ToolchainMissing(
            "the package mcp is not installed", where="optkit mcp", hint="pip install 'optkit[mcp]'"
        )
    from optkit.tool_server import server

    server(workspace).run("stdio")
