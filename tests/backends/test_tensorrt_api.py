"""What the backends use of TensorRT exists in 10.16, 11.4 and RTX 1.7, by dumps of their bindings
(api/*.json; api/refresh.py writes them)."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from optkit.craft.backends import (
    build_log,
    build_options,
    description,
    engine_session,
    layer_profiler,
    plugin_library,
    tensorrt,
    tensorrt_refusals,
    tensorrt_rtx,
)
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target

# How the modules name their objects → the class they are.
OBJECTS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "tensor": "ITensor",
    "parser": "OnnxParser",
    "registry": "IPluginRegistry",
    "problem": "ParserError",
    "config": "IBuilderConfig",
    "optimization": "IOptimizationProfile",
    "timings": "ITimingCache",
    "runtime": "Runtime",
    "runtime_config": "IRuntimeConfig",
    "kernels": "IRuntimeCache",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
}
RTX_ONLY = {
    "trt.ComputeCapability",
    "trt.CudaGraphStrategy",
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
    "IRuntimeConfig.cuda_graph_strategy",
    "IRuntimeConfig.create_runtime_cache",
    "IRuntimeConfig.set_runtime_cache",
    "IRuntimeCache.deserialize",
    "IRuntimeCache.serialize",
}

MODULES = (
    build_log,
    build_options,
    description,
    engine_session,
    layer_profiler,
    plugin_library,
    tensorrt,
    tensorrt_refusals,
    tensorrt_rtx,
)
SOURCE = ast.parse("\n".join(Path(module.__file__ or "").read_text() for module in MODULES))
DUMPS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "api").glob("tensorrt*.json"))
}


def uses(tree: ast.AST) -> dict[str, ast.Call | None]:
    """`trt.A.B` and `Class.attribute` chains, with the call where it is one."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found: dict[str, ast.Call | None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        text = ast.unparse(node).removeprefix("self._")
        root = text.split(".", 1)[0]
        if root == text or "(" in text:  # the object itself, or something of a result
            continue
        if root in OBJECTS:
            text = text.replace(root, OBJECTS[root], 1)
        elif root != "trt":
            continue
        found[text] = calls.get(id(node))
    return found


def missing(dump: dict[str, Any], chains: dict[str, ast.Call | None]) -> list[str]:
    return [chain for chain in chains if not exists(dump, chain.split("."))]


def exists(dump: dict[str, Any], parts: list[str]) -> bool:
    if parts[0] != "trt":
        return parts[1] in dump["classes"].get(parts[0], ())
    inner = dump["enums"].get(parts[1], dump["classes"].get(parts[1], ()))
    return parts[1] in dump["names"] and (len(parts) < 3 or parts[2] in inner)


def parameters(signature: str) -> tuple[int, int]:
    """(required, all) positional parameters after self."""
    signature = signature.replace("::", ".")  # a class that pybind11 knows by its C++ name
    function = ast.parse(f"def {signature.split(' -> ')[0]}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    count = len(function.args.args) - 1
    return count - len(function.args.defaults), count


def test_the_dumps_are_the_versions_the_backend_claims() -> None:
    versions = {name: dump["version"] for name, dump in DUMPS.items()}
    assert versions["tensorrt-10.16"].startswith("10.16.")
    assert versions["tensorrt-11.4"].startswith("11.4.")
    assert versions["tensorrt-rtx-1.7"].startswith("1.7.")


def test_the_source_is_really_read() -> None:
    chains = uses(SOURCE)
    assert {"trt.OnnxParser", "Builder.build_serialized_network"} <= chains.keys()
    assert {"trt.LayerInformationFormat.JSON", "IExecutionContext.profiler"} <= chains.keys()
    assert {chain.split(".")[0] for chain in chains} == {"trt", *OBJECTS.values()}


@pytest.mark.parametrize("version", DUMPS)
def test_everything_used_exists(version: str) -> None:
    allowed = set() if "rtx" in version else RTX_ONLY
    assert set(missing(DUMPS[version], uses(SOURCE))) <= allowed


def test_rtx_only_names_stay_inside_its_class() -> None:
    classes = {node.name: node for node in ast.walk(SOURCE) if isinstance(node, ast.ClassDef)}
    assert uses(classes["TensorRTRTX"]).keys() >= RTX_ONLY
    assert not uses(classes["TensorRT"]).keys() & RTX_ONLY


@pytest.mark.parametrize("version", DUMPS)
def test_calls_fit_the_signatures(version: str) -> None:
    for chain, call in uses(SOURCE).items():
        owner, *rest = chain.split(".")
        signature = DUMPS[version]["classes"].get(owner, {}).get(rest[-1], "")
        starred = call is not None and any(isinstance(arg, ast.Starred) for arg in call.args)
        if call is None or starred or not signature or "*args" in signature:
            continue
        required, allowed = parameters(signature)
        assert required <= len(call.args) + len(call.keywords) <= allowed, (chain, signature)


@pytest.mark.parametrize("version", DUMPS)
def test_what_the_library_calls_back_is_what_it_declares(version: str) -> None:
    """Of our subclasses of its classes: the same names, and as many parameters."""
    written = {
        ast.unparse(node.bases[0]).removeprefix("trt."): [
            (method.name, len(method.args.args) - 1)
            for method in node.body
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
        ]
        for node in ast.walk(SOURCE)
        if isinstance(node, ast.ClassDef) and node.bases
        if ast.unparse(node.bases[0]).startswith("trt.")
    }
    assert written.keys() == {"ILogger", "IProgressMonitor", "IProfiler"}
    for owner, methods in written.items():
        declared = DUMPS[version]["classes"][owner]
        for name, count in methods:
            assert parameters(declared[name])[1] == count, (owner, name)


def test_every_compute_capability_of_the_table_is_in_the_enum() -> None:
    known = set(DUMPS["tensorrt-rtx-1.7"]["enums"]["ComputeCapability"]) - {"NONE", "CURRENT"}
    assert set(tensorrt_rtx._CAPABILITIES.values()) == known


@pytest.mark.parametrize("version", DUMPS)
def test_every_option_of_a_spec_has_its_place(version: str) -> None:
    dump = DUMPS[version]
    backend = TensorRTRTX() if "rtx" in version else TensorRT()
    for device in ("l4", "rtx4090", "h100", "t4", "orin"):
        for name, value in backend.spec((), target(device), PRECISIONS["int8"], {}).options.items():
            if name in build_options._FLAGS:
                assert build_options._FLAGS[name] in dump["enums"]["BuilderFlag"]
            elif name in build_options._ATTRIBUTES:
                attribute, kind = build_options._ATTRIBUTES[name]
                assert attribute in dump["classes"]["IBuilderConfig"]
                assert kind is None or value in dump["enums"][kind]
            else:
                assert name in build_options._ELSEWHERE


def test_the_check_notices_what_versions_lack() -> None:
    code = "trt.BuilderFlag.FP16; trt.IInt8EntropyCalibrator2; trt.EngineValidity; config.nothing"
    found = {name: missing(dump, uses(ast.parse(code))) for name, dump in DUMPS.items()}
    assert found == {
        "tensorrt-10.16": ["trt.EngineValidity", "IBuilderConfig.nothing"],
        "tensorrt-11.4": [
            "trt.BuilderFlag.FP16",
            "trt.IInt8EntropyCalibrator2",
            "trt.EngineValidity",
            "IBuilderConfig.nothing",
        ],
        "tensorrt-rtx-1.7": [
            "trt.BuilderFlag.FP16",
            "trt.IInt8EntropyCalibrator2",
            "IBuilderConfig.nothing",
        ],
    }
