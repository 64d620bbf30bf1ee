"""The MCP server: its tools return the documents of the commands, and errors with their hints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

import optkit
from optkit.verbs import api
from optkit.verbs.tool_server import server
from tests.conftest import COMMAND, ROOT, MainJob, valid

TOOLS = {"targets", "plan", "build", "explain", "inspect", "diff"}


def ask(target: Any, questions: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def talk() -> None:
        async with Client(target) as client:
            await questions(client)

    anyio.run(talk)


def test_tools_say_what_they_take_and_whether_they_write(tmp_path: Path) -> None:
    async def questions(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        for name, tool in tools.items():
            assert tool.description and tool.annotations is not None
            assert tool.annotations.read_only_hint is (name != "build")
            assert not {"context", "self", "tools"} & tool.input_schema["properties"].keys()
        assert tools["build"].input_schema["required"] == ["targets"]
        assert tools["targets"].input_schema.get("required", []) == []

    ask(server(optkit.Workspace(tmp_path)), questions)


def test_answers_are_the_documents_of_the_commands_and_errors_have_hints(tmp_path: Path) -> None:
    async def questions(client: Client) -> None:
        answer = await client.call_tool("targets", {"name": "l4"})
        assert not answer.is_error
        assert answer.structured_content == api.describe_targets("l4").to_json()
        assert json.loads(answer.content[0].text) == answer.structured_content
        for tool, arguments, told in (
            ("targets", {"name": "l5"}, "unknown target 'l5'\nhint: did you mean l4"),
            ("inspect", {"path": str(tmp_path / "none")}, f"{tmp_path / 'none'}: no such file"),
            ("build", {"targets": ["l5"]}, "unknown target 'l5'\nhint: did you mean l4"),
        ):
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error and told in answer.content[0].text

    ask(server(optkit.Workspace(tmp_path)), questions)


def test_the_command_names_the_extra_that_is_missing(
    optkit_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optkit.verbs.cli.mcp.find_spec", lambda name: None)
    ran = optkit_here("mcp")
    assert ran.code == 4
    ran.told("the package mcp is not installed", "optkit[mcp]")


@pytest.mark.slow
def test_an_agent_plans_builds_and_asks_over_stdio(tmp_path: Path, main_job: MainJob) -> None:
    """The server is a process of its own, as an agent starts it."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = StdioServerParameters(
        command=sys.executable, args=[*COMMAND[1:], "mcp", "--cache", str(main_job.cache)],
        env={**environment, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    heard: list[tuple[float, str | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, message))

    async def questions(client: Client) -> None:
        asked = {"targets": ["l4", "h100"], "precisions": ["int8"], "recipe": "digits-vit"}
        answer = await client.call_tool("plan", asked)
        assert valid(answer.structured_content)["schema"] == "optkit.plan/v1"

        asked = {"targets": ["l4"], "recipe": "digits-vit"}
        built = await client.call_tool("build", asked)  # everything of it lies in the store
        result = valid(built.structured_content)
        assert result["artifact"] == "artifacts/digits-vit-l4-int8"

        for tool, arguments, schema in (
            ("inspect", {"path": result["artifact"]}, "optkit.inspect/v1"),
            ("diff", {"a": result["artifact"], "b": result["artifact"]}, "optkit.diff/v1"),
            ("explain", {"artifact": result["artifact"]}, "optkit.explain/v1"),
        ):
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content
            assert valid(answer.structured_content)["schema"] == schema
        several = {"targets": ["l4", "t4"], "precisions": ["fp8"], "recipe": "digits-vit"}
        answer = await client.call_tool("build", several, progress_callback=progress)
        assert heard and [value for value, _ in heard] == sorted({value for value, _ in heard})
        l4, t4 = answer.structured_content["results"]
        assert (l4["precision"], t4["status"]) == ("fp8", "impossible") and t4["error"]["hint"]

    ask(process, questions)
    assert (tmp_path / "artifacts/digits-vit-l4-int8/manifest.json").exists()
