"""What depends on the instruction set, on a machine without VNNI: emulated, where there is one."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.emulation import QEMU, avx2_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(QEMU is None, reason="no qemu-x86_64: apt-get install qemu-user"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its libraries are not for x86"),
]

# every test that runs integer products, or asks what the machine is
CHOSEN = (
    "tests/backends/test_onnxruntime.py",
    "tests/fusion/ort",
    "tests/target/test_machine.py",
    "tests/tuning/test_parts.py",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return avx2_python(tmp_path_factory.mktemp("avx2") / "env")


def test_the_emulated_machine_has_no_vnni(python: Path) -> None:
    """Nor have the processes that it starts."""
    look = "from optkit.target import cpu; print(*cpu().features, cpu().kind)"
    again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}])"
    for code in (look, again):
        done = subprocess.run(
            [python, "-c", code], env=environment(None), capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["avx2", "fma", "f16c", "cpu-avx2"]


@pytest.mark.parametrize("path", CHOSEN)
def test_fast_tests_pass_there(python: Path, path: str) -> None:
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", path], cwd=ROOT, env=environment(None),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout and "failed" not in done.stdout
