"""Downloads from a hub of this machine: only data files are asked for, and every refusal has a
reason and a remedy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.ground.intake import download

pytest.importorskip("huggingface_hub")

from huggingface_hub import constants

COMMIT = "c" * 40
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickle",
    "own.py": b"code",
    "README.md": b"text",
}
REFUSED = {"gated": (403, "GatedRepo"), "absent": (401, "RepoNotFound"), "broken": (500, "")}


class Hub(BaseHTTPRequestHandler):
    """One sound model, `org/name`, and three names that are refused."""

    def do_GET(self) -> None:
        place = self.path.partition("?")[0]
        name = place.rpartition("/")[2]
        refused = next((REFUSED[key] for key in REFUSED if f"org/{key}" in place), None)
        if refused is not None:
            return self.answer(refused[0], b'{"error": "refused"}', {"X-Error-Code": refused[1]})
        if "/resolve/" in place:
            headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
            return self.answer(200, FILES[name], headers)
        facts: object = {"id": "org/name", "sha": COMMIT, "siblings": []}
        if "/tree/" in place:
            facts = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in FILES.items()
            ]
        return self.answer(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        place = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(constants, "ENDPOINT", place)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            place + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("code", [False, True])
def test_data_is_downloaded_and_code_only_where_it_may_run(code: bool, hub: object) -> None:
    folder = download("org/name", code=code)
    named = {"config.json", "model.safetensors"} | ({"own.py"} if code else set())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name] for name in named
    }


def test_without_a_connection_the_last_download_is_there(hub: ThreadingHTTPServer) -> None:
    folder = download("org/name")
    hub.shutdown()
    hub.server_close()
    assert download("org/name") == folder
    with pytest.raises(InputRefused, match="there is no such folder, and the download failed"):
        download("org/other")


@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("org/gated", "its owner must grant access", "hf auth login"),
        ("org/absent", "no public model of this name on the hub", "a private model needs"),
        ("org/broken", "the download failed", "check the connection"),
        ("no/name/of/a/model", "the download failed", "check the connection"),
    ],
)
def test_a_refusal_of_the_hub_has_a_reason_and_a_remedy(
    name: str, problem: str, hint: str, hub: object, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match=problem) as caught:
        download(name)
    assert caught.value.where == name and hint in str(caught.value.hint)
    assert not list((tmp_path / "hub").rglob("*.safetensors"))


def test_the_extra_that_downloads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ToolchainMissing) as caught:
        download("org/name")
    assert "optkit[hf]" in str(caught.value.hint)
