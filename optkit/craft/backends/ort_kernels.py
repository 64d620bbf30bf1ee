"""Kernels of ONNX Runtime's CUDA provider, each a small graph of equal nodes. The provider records
them as a CUDA graph; what one more node adds to a run is the time of its kernel. Never run on a
card."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from optkit.craft.backends.cuda import Cuda
from optkit.craft.backends.onnxruntime import native_options
from optkit.craft.backends.ort_providers import CudaProvider
from optkit.craft.backends.ort_session import Providers, held, library, run_bound
from optkit.facts.card_facts import CardKernel
from optkit.facts.errors import Impossible
from optkit.facts.tensors import Feed
from optkit.ground.runtimes import SessionOptions

_TOGETHER = 20  # nodes of the longer graph
_ENOUGH_MS = 5.0  # a kernel that takes so long is timed alone
_RUNS = 15
_DRAWN = 1 << 16
_BLOCK = 128  # weights that share an INT4 scale
_RECORDED: Providers = (("CUDAExecutionProvider", {"enable_cuda_graph": "1"}),)
_HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'


class OrtKernels:
    """The first device that this process sees. Raises ToolchainMissing if there is none, or if the
    installed library does not have the provider."""

    def __init__(self, providers: Providers = _RECORDED, device: str = "cuda") -> None:
        self._providers, self._device = providers, device
        if device == "cuda":
            CudaProvider().check()
            library().preload_dlls()
            with Cuda() as found:
                self.gpu = found.gpu

    @property
    def versions(self) -> dict[str, str]:
        return {"onnxruntime": str(library().__version__)}

    def milliseconds(self, kernel: CardKernel) -> float:
        """The time of one node. Raises the errors of a session, and Impossible for a kernel that
        the library does not have."""
        alone = self._run(kernel, 1)
        if alone >= _ENOUGH_MS:
            return alone
        return max(self._run(kernel, _TOGETHER) - alone, 1e-6) / (_TOGETHER - 1)

    def _run(self, kernel: CardKernel, nodes: int) -> float:
        """Milliseconds of a run of that many nodes: the median."""
        import onnx_ir as ir

        text, feed, written = graph_of(kernel, nodes)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.onnx"
            ir.save(ir.from_onnx_text(text), path)
            ort = library()
            session = ort.InferenceSession(
                str(path),
                native_options(path, SessionOptions(level="none")),
                providers=[(name, dict(settings)) for name, settings in self._providers],
                enable_fallback=0,
            )
        binding, out = session.io_binding(), held(written, self._device)
        values = {name: held(array, self._device) for name, array in feed.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for node in range(nodes):  # all write the same memory, one after another
            binding.bind_ortvalue_output(f"y{node}", out)
        took = []
        for _ in range(3 + _RUNS):  # the first ones load kernels and record
            started = time.perf_counter()
            run_bound(session, binding, kernel.name)
            took.append(1e3 * (time.perf_counter() - started))
        return median(took[3:])


def graph_of(kernel: CardKernel, nodes: int) -> tuple[str, Feed, np.ndarray]:
    """Equal nodes of one kernel as ONNX text, their inputs, and an array like their outputs. Raises
    Impossible."""
    operator, feed, written = _operator(kernel)
    inputs = ", ".join(f"{_type(array)} {name}" for name, array in feed.items())
    outputs = ", ".join(f"{_type(written)} y{node}" for node in range(nodes))
    body = "\n".join(f"  [n{node}] y{node} = {operator}" for node in range(nodes))
    return f"{_HEADER}\ng ({inputs}) => ({outputs}) {{\n{body}\n}}", feed, written


def _operator(kernel: CardKernel) -> tuple[str, Feed, np.ndarray]:
    form = _FORMS.get((kernel.kind, kernel.precision))
    if form is None:
        raise Impossible(
            f"ONNX Runtime's CUDA provider has no {kernel.kind} in {kernel.precision}",
            where=kernel.name,
        )
    return form(kernel.sizes)


def _half(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    rows, inner, columns = sizes
    feed = {"x": _drawn(rows, inner), "w": _drawn(inner, columns)}
    return "MatMul (x, w)", feed, np.empty((rows, columns), np.float16)


def _int8(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    rows, inner, columns = sizes
    feed = {"x": np.ones((rows, inner), np.int8), "w": np.ones((inner, columns), np.int8)}
    return "MatMulInteger (x, w)", feed, np.empty((rows, columns), np.int32)


def _int4(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    rows, inner, columns = sizes
    blocks = inner // _BLOCK
    codes = np.full((columns, blocks, _BLOCK // 2), 0x5A, np.uint8)
    feed = {"x": _drawn(rows, inner), "w": codes, "s": _drawn(columns * blocks)}
    settings = f"K={inner}, N={columns}, bits=4, block_size={_BLOCK}"
    operator = f"com.microsoft.MatMulNBits <{settings}> (x, w, s)"
    return operator, feed, np.empty((rows, columns), np.float16)


def _attention(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    batch, heads, length, size = sizes
    feed = {name: _drawn(batch, length, heads * size) for name in "qkv"}
    operator = f"com.microsoft.MultiHeadAttention <num_heads={heads}> (q, k, v)"
    return operator, feed, np.empty((batch, length, heads * size), np.float16)


def _convolution(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    batch, side, ins, outs, kernel, stride = sizes
    pad, out = kernel // 2, side // stride
    feed = {"x": _drawn(batch, ins, side, side), "w": _drawn(outs, ins, kernel, kernel)}
    settings = f"pads=[{pad},{pad},{pad},{pad}], strides=[{stride},{stride}]"
    return f"Conv <{settings}> (x, w)", feed, np.empty((batch, outs, out, out), np.float16)


def _copy(sizes: Sequence[int]) -> tuple[str, Feed, np.ndarray]:
    """A node that reads and writes as much as a copy."""
    count = sizes[0] // 2
    return "Neg (x)", {"x": _drawn(count)}, np.empty(count, np.float16)


_FORMS = {
    ("gemm", "fp16"): _half,
    ("gemm", "int8"): _int8,
    ("gemm", "int4"): _int4,
    ("attention", "fp16"): _attention,
    ("conv", "fp16"): _convolution,
    ("copy", "fp16"): _copy,
}


def _drawn(*shape: int) -> np.ndarray:
    """Normal values, which repeat: drawing all of a large tensor takes longer than its kernel."""
    values = np.random.default_rng(0).standard_normal(_DRAWN, np.float32).astype(np.float16)
    return np.resize(values, shape)


def _type(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
