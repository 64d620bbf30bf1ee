"""What TensorRT says when it refuses a graph, as errors with a remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from optkit.backends.tensorrt_refusals import refused_build
from optkit.errors import InputRefused


def test_a_failed_check_inside_the_compiler_has_a_remedy() -> None:
    spec: Any = SimpleNamespace(target="l4")
    check = "convolution_common.cpp:27: CHECK(nbdims_bias == 4 || nbdims_bias == 5) failed"
    error = refused_build("TensorRT-RTX", spec, [f"MyelinCheckException: {check}"])
    assert isinstance(error, InputRefused) and error.where == "TensorRT-RTX for l4"
    assert check in error.message and "fault" in error.message
    assert "-t cpu" in str(error.hint) and "-p fp16" in str(error.hint)
