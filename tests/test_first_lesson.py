"""The first lesson as written: a fresh wheel in a fresh environment, from `pip install` to a
prediction over HTTP."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environments import ROOT, hatchling, wait_for

PAGE = ROOT / "docs/learn/first_lesson.md"


@dataclass(frozen=True)
class Fence:
    language: str
    title: str | None
    text: str


def fences(page: Path) -> list[Fence]:
    pattern = r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$'
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL | re.M)
    return [Fence(language, title or None, text) for language, title, text in found]


def shell(folder: Path, text: str) -> str:
    """bash as a reader has it after the lesson's `source`. A command that fails ends it."""
    inside = "cd digits && source venv/bin/activate" if (folder / "digits/venv").exists() else ":"
    return f"set -e\ncd {folder}\n{inside}\n{text}"


def settings(folder: Path) -> dict[str, str]:
    """Of a user who has never run optkit."""
    kept = {name: value for name, value in os.environ.items()
            if name == "PATH" or name.startswith("PIP_")}  # fmt: skip
    return {**kept, "HOME": str(folder), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}


@pytest.mark.slow
def test_the_lesson_as_written_ends_with_a_prediction(tmp_path: Path) -> None:
    """Of the text, two things change: optkit is this wheel, and the port is a free one. The
    constraints choose the build of PyTorch."""
    wheel, environment = hatchling(ROOT, tmp_path / "wheel", "wheel"), settings(tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = str(free.getsockname()[1])
    said: list[str] = []
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for fence in fences(PAGE):
            text = fence.text.replace("'optkit[", f"'{wheel}[").replace("8000", port)
            command = ["bash", "-c", shell(tmp_path, f"exec env {text}")]
            if fence.title == "server":
                servers.append(subprocess.Popen(command, env=environment))
                wait_for(f"http://localhost:{port}/v2/health/ready", servers[0])
            elif fence.title is not None:
                (tmp_path / "digits" / fence.title).write_text(text)
            elif fence.language == "bash":
                done = subprocess.run(
                    ["bash", "-c", shell(tmp_path, text)], env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
                assert done.returncode == 0, done.stdout
                said.append(done.stdout)
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
        shutil.rmtree(tmp_path / "digits" / "venv", ignore_errors=True)
    everything = "\n".join(said)
    assert re.search(r"^cpu int8 +pass ", everything, re.M), everything
    assert "exit code 3" in everything and "packages/digits-oci" in everything, everything
    predicted, true = said[-1].splitlines()
    assert predicted.removeprefix("predicted:").split() == true.removeprefix("true:").split()


def test_the_lesson_is_read_whole() -> None:
    found = fences(PAGE)
    assert {fence.title for fence in found if fence.title} == {
        "model.py", "train.py", "convert.py", "optkit.yaml", "server", "ask.py",
    }  # fmt: skip
    assert PAGE.read_text(encoding="utf-8").count("\n```") == 2 * len(found)
