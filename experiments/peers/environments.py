"""One virtual environment per tool, in the cache: their pins contradict each other.

    python experiments/peers/environments.py --root DIR [NAME ...]

torch is pinned everywhere, or pip would bring a CUDA build. An environment is built again when its
requirements change; what was installed is in `environments/<name>.json`. An install that fails is
recorded there with its reason, and the tables show it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.13.0"
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    # also trains the workloads, scores every artifact and times it
    "onnxruntime": (
        TORCH, "numpy==2.4.6", "onnx==1.23.2", "onnx-ir==1.1.0", "onnxscript==0.7.2",
        "onnxruntime==1.32.0", "transformers==5.23.0", "scikit-learn", "tokenizers", "sympy",
    ),
    "modelopt": (TORCH, "nvidia-modelopt[onnx]==0.47.0"),
    "olive": (
        TORCH, "olive-ai==0.13.0", "onnxruntime==1.32.0", "transformers==5.23.0", "scikit-learn",
        "requests",  # not declared, and its import fails without
    ),
    "nncf": (TORCH, "nncf==3.4.0", "onnx", "onnxruntime==1.32.0"),
}  # fmt: skip
NAMED = ("torch", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "nvidia-modelopt", "olive-ai",
         "nncf", "transformers", "optkit", "tensorrt-rtx")  # fmt: skip
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OLIVE_DISABLE_TELEMETRY": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Environment:
    """`failure` None: `python` is its interpreter. `versions`: distribution → version."""

    name: str
    python: Path
    versions: dict[str, str] = field(default_factory=dict)
    failure: str | None = None


def ensure(root: Path, name: str) -> Environment:
    """The environment of that name, built now if it is not there. "optkit" is this interpreter."""
    if name == "optkit":
        python = Path(sys.executable)
        return Environment(name, python, versions(python))
    folder = root / "environments" / name
    record = folder.with_suffix(".json")
    wanted = list(REQUIREMENTS[name])
    python = folder / "bin" / "python"
    if record.exists():
        known = json.loads(record.read_text())
        if known["requirements"] == wanted:
            return Environment(name, python, known["versions"], known["failure"])
    failure = build(folder, python, wanted)
    found = versions(python) if failure is None else {}
    written = {"requirements": wanted, "versions": found, "failure": failure}
    record.write_text(json.dumps(written, indent=1))
    return Environment(name, python, found, failure)


def build(folder: Path, python: Path, wanted: list[str]) -> str | None:
    """None when it was built, else the last line that pip or venv wrote."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return None


def versions(python: Path) -> dict[str, str]:
    """The distributions that matter, as that interpreter has them."""
    script = (
        "import json; from importlib.metadata import distributions;"
        "print(json.dumps({one.name: one.version for one in distributions()}))"
    )
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    found = {name.lower(): version for name, version in json.loads(done.stdout).items()}
    return {name: found[name] for name in NAMED if name in found}


def variables() -> dict[str, str]:
    """The environment variables every tool runs with."""
    return {**os.environ, **QUIET}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or REQUIREMENTS:
        made = ensure(options.root, name)
        print(f"{name}: {made.failure or made.versions}")


if __name__ == "__main__":
    main()
