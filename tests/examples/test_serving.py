"""The server of examples/serving: a real one, in an environment that has only what it needs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from tests.conftest import Optkit
from tests.environments import ROOT, environment, hatchling, output, wait_for

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "serving"
NAME = "digits-vit-cpu-int8"
INFER = f"/v2/models/{NAME}/infer"

TRITON = """
import sys
import numpy as np
from tritonclient import http

url, name, feed, out = sys.argv[1:]
client, x = http.InferenceServerClient(url), np.load(feed)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(name)
[tensor] = client.get_model_metadata(name)["inputs"]
image = http.InferInput(tensor["name"], x.shape, tensor["datatype"])
image.set_data_from_numpy(x, binary_data=False)
np.save(out, client.infer(name, [image]).as_numpy("output"))
"""


@dataclass(frozen=True)
class Server:
    artifact: Path
    port: int
    python: Path
    settings: dict[str, str]

    def post(self, body: object) -> tuple[int, Any]:
        """Status and answer of a request for inference."""
        connection = HTTPConnection("127.0.0.1", self.port)
        with closing(connection):
            connection.request("POST", INFER, json.dumps(body),
                               {"Content-Type": "application/json"})  # fmt: skip
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, optkit_apart: Optkit) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    built = optkit_apart("build", "--recipe", "digits-vit", "--target", "cpu", "--precision",
                         "int8", "--out", folder / "artifacts", cache=folder / "cache")  # fmt: skip
    assert built.code == 0, built.err
    lines = (line.partition("#")[0] for line in (EXAMPLE / "requirements.txt").open())
    python = environment("serving", *(line.strip() for line in lines if line.strip()))
    wheel = hatchling(ROOT, folder / "wheel", "wheel")
    output([python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder / "installed",
            wheel], folder)  # fmt: skip
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    settings = {"MODEL": str(folder / "artifacts" / NAME), "HOME": str(folder),
                "OPTKIT_CACHE": str(folder / "other-machine"),
                "PYTHONPATH": str(folder / "installed"), "PATH": os.environ["PATH"]}  # fmt: skip
    process = subprocess.Popen(
        [python, "-m", "uvicorn", "server:app", "--port", str(port), "--no-access-log"],
        cwd=EXAMPLE, env=settings,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/v2/health/ready", process)
        yield Server(folder / "artifacts" / NAME, port, python, settings)
    finally:
        process.terminate()
        process.wait(30)


def test_the_log_says_what_runs_where_the_engine_does_not(server: Server) -> None:
    for_l4 = ROOT / "tests/artifact/old/2026-11-24/tiny-l4-int8"
    settings = server.settings | {"MODEL": str(for_l4)}
    done = subprocess.run([server.python, "-c", "import server"], cwd=EXAMPLE, env=settings,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tiny-l4-int8 on onnxruntime: " in done.stderr
    assert "simulation.onnx runs" in done.stderr


def images(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).random((rows, 1, 8, 8), np.float32)


def tensor(x: np.ndarray, **changes: object) -> dict[str, Any]:
    return {"name": "image", "shape": x.shape, "datatype": "FP32", "data": x.tolist()} | changes


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_answers_are_the_outputs_of_the_artifact_bit_by_bit(server: Server, rows: int) -> None:
    x = images(rows)
    status, answer = server.post({"id": "a", "inputs": [tensor(x, data=x.ravel().tolist())]})
    [found] = answer.pop("outputs")
    assert (status, answer) == (200, {"model_name": NAME, "id": "a"})
    assert (found["name"], found["datatype"], found["shape"]) == ("output", "FP32", [rows, 10])
    expected = optkit.load(server.artifact).run({"image": x})["output"]
    assert np.array_equal(np.array(found["data"], np.float32).reshape(rows, 10), expected)


def test_tritons_own_client_reads_the_same_bits(server: Server, tmp_path: Path) -> None:
    python = environment("tritonclient", "tritonclient[http]==2.73.0")
    np.save(tmp_path / "feed.npy", images(5))
    output([python, "-c", TRITON, f"127.0.0.1:{server.port}", NAME, tmp_path / "feed.npy",
            tmp_path / "out.npy"], tmp_path)  # fmt: skip
    expected = optkit.load(server.artifact).run({"image": images(5)})["output"]
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([tensor(images(2)[:, :, 1:])], "shape (2, 1, 7, 8) does not fit (batch, 1, 8, 8)"),
        ([tensor(images(2), shape=[2, 8])], "input 'image': cannot reshape array of size 128"),
        ([tensor(images(1), datatype="FP64")], "input 'image': dtype float64, not float32"),
        ([tensor(images(1), datatype="TF32")], "input 'image': data type 'tf32' not understood"),
        ([tensor(images(1), data=["one"] * 64)], "could not convert string to float"),
        ([tensor(images(1), name="picture")], "input 'image': the feed does not have this input"),
        ([], "input 'image': the feed does not have this input"),
        ([{"name": "image", "shape": [1], "data": [1]}], "body.inputs.0.datatype: Field required"),
        (None, "body.inputs: Input should be a valid list"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_a_reason(
    server: Server, inputs: object, said: str
) -> None:
    status, answer = server.post({"inputs": inputs})
    assert status == 400 and said in answer["error"], answer
    assert server.post({"inputs": [tensor(images(1))]})[0] == 200


def test_another_model_is_not_found(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.port)
    with closing(connection):
        connection.request("GET", "/v2/models/other/ready")
        answer = connection.getresponse()
        assert answer.status == 404 and NAME in json.loads(answer.read())["error"]


def test_the_load_generator_counts_its_requests(server: Server, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"inputs": [tensor(images(1))]}))
    printed = output([sys.executable, EXAMPLE / "load.py", f"http://127.0.0.1:{server.port}{INFER}",
                      tmp_path / "one.json", "--seconds", "2"], tmp_path)  # fmt: skip
    assert printed.startswith("2 clients, ") and " per second, p50 " in printed


def test_the_image_has_what_this_environment_has() -> None:
    lines = (EXAMPLE / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ")]
    here = [name for name in copied if not name.startswith(("${", "wheels"))]
    assert here and all((EXAMPLE / name).is_file() for name in here)
    assert "RUN pip install --no-cache-dir -r requirements.txt" in lines
    assert "RUN pip install --no-cache-dir --no-deps wheels/optkit-*.whl" in lines


def test_kubernetes_accepts_the_deployment(tmp_path: Path) -> None:
    """By its schema; nothing is deployed. The names of probes and service are those above."""
    python = environment("kubernetes", "kubernetes-validate>=1.37")
    command: list[str | Path] = [python.with_name("kubernetes-validate"), "--strict", "-k", "1.34"]
    output([*command, EXAMPLE / "deployment.yaml"], tmp_path)
    text = (EXAMPLE / "deployment.yaml").read_text(encoding="utf-8")
    assert "containerPort: 8000" in text and "/v2/health/ready" in text
    (tmp_path / "wrong.yaml").write_text(text.replace("replicas: 2", "replica: 2"))
    with pytest.raises(AssertionError, match="replica"):
        output([*command, tmp_path / "wrong.yaml"], tmp_path)
