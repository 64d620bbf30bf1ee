"""Behaviour that depends on the instruction set, on a machine without VNNI, or one that reports no
VNNI."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from optkit.ground.devices import cpu
from tests.avx2.environment import MISSING, avx2_python
from tests.codes import SATURATES
from tests.conftest import ROOT, Optkit, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: apt-get install gcc binutils"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its libraries are not for x86"),
]

# every test that runs integer products, or asks what the machine is
CHOSEN = (
    "tests/backends/test_onnxruntime.py",
    "tests/fusion/ort",
    "tests/devices/test_machine.py",
    "tests/tuning/test_parts.py",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return avx2_python(tmp_path_factory.mktemp("avx2") / "env")


def test_the_machine_has_no_vnni(python: Path) -> None:
    """Nor have the processes that it starts."""
    look = "from optkit.ground.devices import cpu; print(*cpu().features, cpu().kind)"
    again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}])"
    for code in (look, again):
        done = subprocess.run(
            [python, "-c", code], env=environment(None), capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["avx2", "fma", "f16c", "cpu-avx2"]


@pytest.mark.skipif("amx_int8" not in cpu().features, reason="this machine has no AMX")
def test_amx_alone_is_hidden(tmp_path: Path) -> None:
    """As experiments/speed/kernels.py measures VNNI on a machine with AMX."""
    python = avx2_python(tmp_path / "env", keep_avx512=True)
    look = "from optkit.ground.devices import cpu; print(*cpu().features, cpu().kind)"
    done = subprocess.run(
        [python, "-c", look], env=environment(None), capture_output=True, text=True, check=True
    )
    *features, kind = done.stdout.split()
    hidden = {"amx_tile", "amx_int8", "amx_bf16"}
    assert (set(features), kind) == (set(cpu().features) - hidden, "cpu-avx512-vnni")


@pytest.mark.parametrize("path", CHOSEN)
def test_fast_tests_pass_there(python: Path, path: str) -> None:
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", path], cwd=ROOT, env=environment(None),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


RUN = """
import sys, numpy as np, optkit
artifact = optkit.load(sys.argv[1])
with artifact.session() as session:
    np.save(sys.argv[2], next(iter(session.run({"image": np.load(sys.argv[3])}).values())))
    print(session.note)
"""


@pytest.mark.skipif(SATURATES, reason="this machine has no VNNI: its artifacts keep to 7 bits")
def test_an_artifact_for_vnni_computes_the_same_there(
    python: Path, tmp_path: Path, optkit_apart: Optkit
) -> None:
    folder = tmp_path / "artifacts"
    built = optkit_apart(
        "build", "--recipe", "digits-cnn", "--target", "cpu", "--precision", "int8",
        "--set", "bench.seconds=0.1", "--embed-eval", "64M", "--out", folder,
        "--json", cache=tmp_path / "cache",
    )  # fmt: skip
    assert built.code == 0, built.err
    artifact = folder / "digits-cnn-cpu-int8"
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert manifest["instruction_set"] == "vnni"
    np.save(tmp_path / "x.npy", load_file(artifact / "eval.safetensors")["0/image"])

    def run(program: Path, name: str) -> tuple[np.ndarray, str]:
        command = [program, "-c", RUN, artifact, tmp_path / name, tmp_path / "x.npy"]
        done = subprocess.run(
            command, env=environment(None), capture_output=True, text=True, check=True
        )
        return np.load(tmp_path / name), done.stdout.strip()

    (here, quiet), (there, note) = run(Path(sys.executable), "a.npy"), run(python, "b.npy")
    assert quiet == "None" and "VNNI, which this CPU lacks" in note
    np.testing.assert_array_equal(here.argmax(-1), there.argmax(-1))
    np.testing.assert_allclose(there, here, atol=1e-4 * float(np.abs(here).max()))
