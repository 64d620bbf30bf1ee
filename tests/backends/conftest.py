"""Small graphs in the forms that quantization writes for each backend, and short stand-ins for the
driver and TensorRT."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.backends import cuda
from optkit.craft.backends.tensorrt import TensorRT
from optkit.ground.runtimes import Recurrent, SessionOptions
from tests.backends.standins import INPUT, JSON, Driver, FakeEngine, Typed
from tests.codes import weights


class Net:
    """An ONNX graph under construction. `carrier`: dtype of what is not quantized; `activation`:
    dtype of the activation codes; `rank`: of their scales."""

    def __init__(self, carrier: str = "float16", activation: str = "int8", rank: int = 0) -> None:
        self.carrier, self.activation, self.rank = np.dtype(carrier), np.dtype(activation), rank
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(7)

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = np.asarray(array)
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}.y"], name=name, **attributes))
        return f"{name}.y"

    def start(self, value: str = "x") -> str:
        if self.carrier == np.float32:
            return value
        return self.node("Cast", [value], "cast_in", to=TensorProto.FLOAT16)

    def quantized(self, value: str, scale: float = 0.05, zero_point: int = 0) -> str:
        name = f"q{len(self.nodes)}"
        shape = (1,) * self.rank
        s = self.constant(f"{name}.s", np.full(shape, scale, self.carrier))
        z = self.constant(f"{name}.z", np.full(shape, zero_point, self.activation))
        codes = self.node("QuantizeLinear", [value, s, z], f"{name}.q")
        return self.node("DequantizeLinear", [codes, s, z], f"{name}.dq")

    def weight(self, name: str, shape: tuple[int, ...], axis: int, scale_axis: int = -1) -> str:
        """Codes and one scale per slice along `axis` (or, wrongly, along `scale_axis`)."""
        axis = axis if scale_axis < 0 else scale_axis
        codes = weights(self.random, shape)
        scales = self.random.uniform(0.005, 0.01, shape[axis]).astype(self.carrier)
        w = self.constant(f"{name}.w", codes)
        s = self.constant(f"{name}.ws", scales)
        z = self.constant(f"{name}.wz", np.zeros(shape[axis], np.int8))
        return self.node("DequantizeLinear", [w, s, z], f"{name}.wdq", axis=axis)

    def floats(self, name: str, shape: tuple[int, ...]) -> str:
        return self.constant(name, self.random.standard_normal(shape).astype(self.carrier) * 0.1)

    def conv(self, x: str, name: str, inputs: int, outputs: int, relu: bool = False) -> str:
        """Its bias is int32 after uint8 codes (for a CPU), else float."""
        w = self.weight(name, (outputs, inputs, 3, 3), 0)
        on_codes = self.activation == np.uint8 and x.endswith(".dq.y")
        b = self._bias(name, x) if on_codes else self.floats(f"{name}.b", (outputs,))
        y = self.node("Conv", [x, w, b], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        return self.node("Relu", [y], f"{name}.relu") if relu else y

    def _bias(self, name: str, x: str) -> str:
        """The values of int32 codes, in steps of the scale of the input times that of the weight"""
        scale = self.constants[f"{x.removesuffix('.dq.y')}.s"] * self.constants[f"{name}.ws"]
        s = self.constant(f"{name}.bs", scale.astype(np.float32))
        b = self.constant(f"{name}.b", self.random.integers(-99, 99, scale.shape, np.int32))
        return self.node("DequantizeLinear", [b, s], f"{name}.bdq", axis=0)

    def matmul(self, x: str, name: str, inputs: int, outputs: int, **weight: Any) -> str:
        return self.node("MatMul", [x, self.weight(name, (inputs, outputs), 1, **weight)], name)

    def write(self, path: Path, y: str, x: tuple[Any, ...], out: tuple[Any, ...]) -> Path:
        """The finished model, input `x` and the value `y` as output, both float32."""
        if self.carrier != np.float32:
            y = self.node("Cast", [y], "cast_out", to=TensorProto.FLOAT)
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, out)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(model, path)
        return path


@pytest.fixture
def net() -> type[Net]:
    return Net


def quiet(what: str, done: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def unwatched() -> Any:
    return quiet


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "load", lambda: Typed(made))
    return made


@pytest.fixture
def backend(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorRT:
    """Full TensorRT over a library of a few lines, and an engine `m.engine`."""
    runtime = SimpleNamespace(deserialize_cuda_engine=lambda plan: FakeEngine(driver))

    class ILogger:
        def __init__(self) -> None: ...

    library = SimpleNamespace(
        ILogger=ILogger,
        Runtime=lambda log: runtime,
        TensorIOMode=SimpleNamespace(INPUT=INPUT),
        TensorLocation=SimpleNamespace(HOST=object()),
        LayerInformationFormat=SimpleNamespace(JSON=JSON),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED=object()),
        IProfiler=type("IProfiler", (), {"__init__": lambda self: None}),
    )
    monkeypatch.setitem(sys.modules, "written_here", library)
    (tmp_path / "m.engine").write_bytes(b"plan")

    written: TensorRT = type("Written", (TensorRT,), {"module": "written_here"})()
    return written


@pytest.fixture
def opened(backend: TensorRT, tmp_path: Path) -> Callable[..., Recurrent]:
    def run(**options: Any) -> Recurrent:
        return backend.session(tmp_path / "m.engine", SessionOptions(**{"target": "l4", **options}))

    return run
