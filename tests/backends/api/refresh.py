"""Dump the Python API of TensorRT's bindings, so that tests can check our use of it without a GPU.

    python tests/backends/api/refresh.py

downloads the bindings wheels with pip into a temporary folder and rewrites the JSON files beside
this script. The bindings need three shared libraries and from them nine functions; a stub that
defines these (compiled with gcc) lets them be imported and looked at, and nothing more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent

# file name → wheel, module, library version
SOURCES = {
    "tensorrt-10.16": ("tensorrt-cu12-bindings==10.16.1.11", "tensorrt_bindings", "10"),
    "tensorrt-11.4": ("tensorrt-cu13-bindings==11.4.0.106", "tensorrt_bindings", "11"),
    "tensorrt-rtx-1.7": ("tensorrt-rtx-cu13-bindings==1.7.1.116", "tensorrt_rtx_bindings", "1"),
}

LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser", "tensorrt_rtx", "tensorrt_onnxparser_rtx")

STUB = """
#define S(n) void* n(void){return 0;}
S(createInferBuilder_INTERNAL) S(createInferRefitter_INTERNAL) S(createInferRuntime_INTERNAL)
S(createNvOnnxParserRefitter_INTERNAL) S(createNvOnnxParser_INTERNAL)
S(getBuilderPluginRegistry) S(getPluginRegistry)
int getNvOnnxParserVersion(void){return 0;}
int initLibNvInferPlugins(void){return 0;}
"""

# Run in a child that imports the module: enums with their members; of the classes a backend
# touches, every attribute with the signature that its docstring starts with.
DUMP = """
import importlib, json, sys
trt = importlib.import_module(sys.argv[1])
CLASSES = ("Builder", "IBuilderConfig", "IExecutionContext", "IHostMemory", "ILogger",
    "INetworkDefinition", "IOptimizationProfile", "IProfiler", "IProgressMonitor",
    "IRuntimeCache", "IRuntimeConfig", "ITensor", "ITimingCache", "ICudaEngine",
    "EngineInspector", "IPluginRegistry", "OnnxParser", "ParserError", "Runtime")
def signature(member):
    lines = (getattr(member, "__doc__", None) or "").strip().splitlines()
    return lines[0].replace("tensorrt_rtx_bindings.", "").replace("tensorrt_bindings.", "") \\
        if lines and "(" in lines[0] and callable(member) else ""
members = {name: list(getattr(trt, name).__members__) for name in dir(trt)
    if hasattr(getattr(trt, name), "__members__")}
classes = {name: {key: signature(getattr(getattr(trt, name), key))
    for key in dir(getattr(trt, name)) if not key.startswith("_")}
    for name in CLASSES if hasattr(trt, name)}
names = [name for name in dir(trt) if not name.startswith("_")]
print(json.dumps({"version": trt.__version__, "names": names, "enums": members,
    "classes": classes}, indent=1, sort_keys=True))
"""


def main() -> None:
    for name, (wheel, module, version) in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            dumped = dump(Path(folder), wheel, module, version)
        (HERE / f"{name}.json").write_text(json.dumps(dumped, indent=1, sort_keys=True) + "\n")


def dump(folder: Path, wheel: str, module: str, version: str) -> dict[str, object]:
    """Download, unpack, stub the libraries, import in a child and look."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
    subprocess.run([*pip, "--only-binary", ":all:", wheel], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder)
    (folder / "stub.c").write_text(STUB)
    for library in LIBRARIES:
        file = f"lib{library}.so.{version}"
        build = ["gcc", "-shared", "-fPIC", "-o", str(folder / file), f"-Wl,-soname,{file}"]
        subprocess.run([*build, str(folder / "stub.c")], check=True)
    child = subprocess.run(
        [sys.executable, "-c", DUMP, module],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, object] = json.loads(child.stdout)
    return found


if __name__ == "__main__":
    main()
