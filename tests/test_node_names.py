"""The module in the name of a node."""

from __future__ import annotations

import pytest

from optkit.facts.node_names import module_of
from optkit.satellites.qat.quantization_plan import path_of

NAMES = {
    "blocks.0.mlp/MatMul": "blocks.0.mlp",
    "/blocks.0/mlp/MatMul": "blocks.0.mlp",
    "heads.left/right/Conv": "heads.left/right",  # a key of a ModuleDict
    "q/MatMul + k/MatMul": "q",
    "MatMul": None,
    "/MatMul": None,
}


@pytest.mark.parametrize(("name", "path"), NAMES.items())
def test_a_node_is_in_one_module_whoever_asks(name: str, path: str | None) -> None:
    assert module_of(name) == path
    assert path_of(name) == (path or "")
