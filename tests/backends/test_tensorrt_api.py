"""What backends/tensorrt.py uses exists in TensorRT 10.16, 11.4 and RTX 1.7, by dumps of the real
bindings (api/*.json; api/refresh.py writes them)."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from optkit.backends import tensorrt

# How the module names its objects → the class they are.
OBJECTS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "tensor": "ITensor",
    "parser": "OnnxParser",
    "problem": "ParserError",
    "config": "IBuilderConfig",
    "optimization": "IOptimizationProfile",
}
RTX_ONLY = {
    "trt.ComputeCapability",
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
}

SOURCE = ast.parse(Path(tensorrt.__file__).read_text())
DUMPS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "api").glob("*.json"))
}


def uses(tree: ast.AST) -> dict[str, ast.Call | None]:
    """`trt.A.B` and `Class.attribute` chains, with the call where it is one."""
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found: dict[str, ast.Call | None] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        text = ast.unparse(node)
        root = text.split(".", 1)[0]
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
        return parts[1] in dump["classes"][parts[0]]
    inner = dump["enums"].get(parts[1], dump["classes"].get(parts[1], ()))
    return parts[1] in dump["names"] and (len(parts) < 3 or parts[2] in inner)


def parameters(signature: str) -> tuple[int, int]:
    """(required, all) positional parameters after self."""
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


def test_every_compute_capability_of_the_table_is_in_the_enum() -> None:
    known = set(DUMPS["tensorrt-rtx-1.7"]["enums"]["ComputeCapability"]) - {"NONE", "CURRENT"}
    assert set(tensorrt._CAPABILITIES.values()) == known


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
