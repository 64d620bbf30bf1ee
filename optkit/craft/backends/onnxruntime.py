"""ONNX Runtime on this machine's CPU.

It compiles when it loads a graph, so the engine is the ONNX graph itself. One run of the optimized
session shows the result: its profile names every kernel with its dtypes and sizes, and its
optimized graph shows from which ONNX node each kernel comes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optkit.craft.backends import ort_adapter
from optkit.craft.backends.kernel_list import parse_kernels
from optkit.craft.backends.kernel_speeds import kernel_speeds
from optkit.craft.backends.landing import landing, products
from optkit.craft.backends.ort_objects import NativeOptions
from optkit.craft.backends.ort_session import DISABLED, OrtSession, library
from optkit.craft.backends.shape_profile import batch, profile
from optkit.facts.engines import BuildSpec, Engine, FusedLayer
from optkit.facts.errors import Impossible, ToolchainMissing
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, NumberFormat, Precision
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import Target, cpu, runs_here
from optkit.ground.devices.machine import sums_in_16_bits
from optkit.ground.execute.installed import installed
from optkit.ground.runtimes import (
    DEFAULT_OPTIONS,
    ONNXRUNTIME_WHEELS,
    Level,
    Progress,
    SessionOptions,
    Traits,
)

if TYPE_CHECKING:  # the rules of a backend must be available without loading a graph library
    import onnx_ir as ir

# zero points (`placement.zero_points` of the recipe) cost 4 bits per block, and up to 1.3 times the
# time for one row with AVX2 kernels
_SIGNED = NumberFormat("int4", "block", symmetric=True, block_size=32, signed_scale=True)
# MatMulNBits: the format of the weight, if it differs from the scheme's, and the accuracy level
_WEIGHT_ONLY: Mapping[str, tuple[NumberFormat | None, int | None]] = MappingProxyType(
    {
        "int8-weight-only": (NumberFormat("int8", "block", symmetric=True, block_size=128), 4),
        # 0.5 dB less than level 0, and 1.4 times as fast: docs/studies/four_bit_weights.md
        "int4": (_SIGNED, 4),
        "w4a8": (_SIGNED, 4),
        # nearly as accurate as with zero points; level 0 has no kernel of 2 bits
        # and takes 80 times as long: docs/studies/two_bit_weights.md
        "int2": (replace(_SIGNED, dtype="int2", block_size=64), 4),
        "nf4": (None, None),
    }
)

# QMoE, or GatherBlockQuantized; with 8 bits the kernel rounds activations by block at every level
_EXPERTS: Mapping[str, NumberFormat] = MappingProxyType(
    dict.fromkeys(("int4", "w4a8"), _SIGNED)
    | dict.fromkeys(
        ("int8", "int8-weight-only"), NumberFormat("int8", "block", symmetric=True, block_size=64)
    )
)

_LEVELS: dict[Level, str] = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}


class OnnxRuntime:
    """The CPU backend: the reference for simulation, and a target for deployment."""

    name = "onnxruntime"
    traits = Traits(
        engine="graph",
        on_cpu=True,
        operators="ort",
        memory="process",
        caches=frozenset({"int8", "int4"}),
    )

    def check(self) -> None:
        """Raise ToolchainMissing unless exactly one onnxruntime wheel is installed and loads."""
        if len(wheels := OnnxRuntime.versions(self)) > 1:  # without those of a plugin
            raise ToolchainMissing(
                f"{' and '.join(wheels)} use the same folder and overwrite each other",
                hint="pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'optkit[cpu]'",
            )
        library()

    def offline(self, target: Target) -> str | None:
        """None for `cpu` and for the kind of this machine, because ONNX Runtime compiles for the
        CPU on which it runs."""
        if runs_here(target):
            return None
        if not target.is_cpu:
            return "ONNX Runtime compiles for this machine's CPU only"
        own = f"of the kind {cpu().kind}" if cpu().kind else "of no kind that is known"
        return f"ONNX Runtime compiles for the CPU it runs on, and this one is {own}"

    def versions(self) -> dict[str, str]:
        """Versions of the installed wheels, read without importing them."""
        versions = {name: installed(name) for name in ONNXRUNTIME_WHEELS}
        return {name: version for name, version in versions.items() if version is not None}

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """Why this backend never runs a precision; None for floats and for precisions with
        kernels."""
        if not precision.quantized or "cpu" in precision.runs_on:
            return None
        return f"{precision} has no kernels in ONNX Runtime on a CPU"

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """u8 activations, because s8 × s8 has no fast kernel on x86. A convolution computes in
        integers only if its output is quantized; a MatMul or Gemm can return floats at no cost.
        optkit writes biases as integers, because ONNX Runtime would clip them. If VPMADDUBSW adds
        pairs of products in 16 bits (x86 without VNNI), weights have 7 bits, because the sums would
        saturate (ONNX Runtime's documentation on quantization, "reduce_range").

        If only weights are quantized, the kernel rounds activations to 8 bits by block and
        multiplies integers. With 4-bit weights it can also multiply in floats (`nbits_accuracy` 0).
        With weights of 8 or 2 bits this dequantizes the whole weight in each run, which is fifty
        times slower than FP32.

        No later layer reduces the error of the last layer, and in a decoder the last layer had the
        largest error. With 8 bits it is as fast, if it fits in the cache
        (docs/studies/four_bit_weights.md).
        """
        reason = self.refuses(target, precision)
        if reason is not None or precision.weights is None:
            able = (p.name for p in PRECISIONS.values() if p.quantized and "cpu" in p.runs_on)
            raise Impossible(
                reason or f"{precision} quantizes nothing",
                where=f"{target.name} × {precision}",
                hint=f"here it runs {', '.join(able)}",
            )
        if precision.weight_codes_only:
            weight, accuracy = _WEIGHT_ONLY[precision.name]
            few_bits = precision.weights.is_integer and precision.weights.bits <= 4
            return PlacementRules(
                activation=None,
                weight=weight or precision.weights,
                ops=frozenset({"MatMul", "Gemm"}),
                residual_adds=False,
                quantize_outputs=frozenset(),
                float_output=True,
                blocks="powers" if precision.weights.is_table else "any",
                embeddings=True,
                nbits_accuracy=accuracy,
                last=PRECISIONS["int8-weight-only"] if few_bits else None,
                experts=_EXPERTS.get(precision.name),
            )
        saturates = target.is_cpu and sums_in_16_bits(str(target.machine), target.features)
        limit = 7 if saturates else None
        return PlacementRules(
            activation=NumberFormat("uint8", "tensor", symmetric=False),
            weight=NumberFormat("int8", "channel", symmetric=True, limit_bits=limit),
            ops=frozenset({"Conv", "MatMul", "Gemm"}),
            residual_adds=True,
            quantize_outputs=frozenset({"Conv"}),
            float_output=True,
            min_conv_channels=4,
            depthwise_conv="between",
            kernels=kernel_speeds(target) if target.is_cpu else None,
            integer_bias=frozenset({"Conv", "Gemm"}),
            gemm_for_matrices=True,
            two_term=True,
            free_bias=True,
            embeddings=True,
            experts=_EXPERTS[precision.name],
            recurrent=True,
        )

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Target,
        precision: Precision,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Raises UsageError for a missing range, or an invalid one."""
        return BuildSpec(
            backend=self.name,
            target=target.name,
            compute_capability=None,
            precision=precision.name,
            profile=profile(inputs, axes),
            workspace_bytes=None,
            options={"level": "all", "disabled_optimizers": list(DISABLED)},
            reasons={
                "profile": "ONNX Runtime takes any size; kernels are listed at the optimum",
                "level": "what users run",
                "disabled_optimizers": "a MatMul fused with its bias is not computed in integers; "
                "a float weight between Q/DQ pairs would get codes of one scale for all channels",
            },
        )

    def accept(self, model: Path) -> None:
        """Accepts every graph, because each exported and fused graph has already run here."""

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, Precision],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """Copy the graph into folder `out` and list its kernels on this machine. It keeps no
        caches.

        Raises ToolchainMissing or InputRefused (names the node).
        """
        from optkit.ground import graph

        loaded = graph.load(model)
        file, size = copy_graph(model, loaded, out / f"{self.name}.onnx")
        progress("listing kernels", 0.5)
        shapes = {name: opt for name, (_, opt, _) in spec.profile.items()}
        nodes = products(loaded)
        layers = _kernels(model, shapes, nodes)
        moved = [layer.bytes_moved for layer in layers]
        return Engine(
            backend=self.name,
            target=spec.target,
            file=file.name,
            bytes=size,
            layers=layers,
            landing=landing(layers, nodes, planned),
            batch=batch(spec.profile),
            bytes_moved=None if None in moved else sum(size or 0 for size in moved),
            static_layers=layers,
            versions=self.versions(),
        )

    def session(self, model: Path, options: SessionOptions = DEFAULT_OPTIONS) -> OrtSession:
        """Load an ONNX file, with an adapter if one is given. It has the same sums on any CPU, for
        whichever CPU it was built: see `native_options`. Raises InputRefused for the adapter of
        another graph."""
        session = OrtSession(model, native_options(model, options))
        if options.adapter is not None:
            session.adapt(ort_adapter.read(options.adapter))
        return session


def kernel_times(
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    seconds: float,
    threads: int | None,
    given: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> list[tuple[FusedLayer, float]]:
    """The kernels of a graph on this machine, and the median milliseconds of each over runs at
    these shapes, for about so many seconds. `threads`: as for `session`. `given`: arrays of inputs,
    which are repeated or cut to the shapes; an input without one is zeros.

    Raises ToolchainMissing or InputRefused (names the node).
    """
    from optkit.ground import graph

    layers, spent = _profiled(model, shapes, products(graph.load(model)), seconds, threads, given)
    return [(layer, float(np.median(spent.get(layer.name, [0.0])))) for layer in layers]


def _kernels(
    model: Path, shapes: Mapping[str, tuple[int, ...]], nodes: Mapping[str, ir.Node]
) -> tuple[FusedLayer, ...]:
    """Load the graph, run it once on zeros of these shapes, and read the kernels. `nodes`: those
    that multiply."""
    return _profiled(model, shapes, nodes, 0.0)[0]


# the largest number of runs, and the number of first runs that do not count
_RUNS, _WARMING = 50, 3


def _profiled(
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    nodes: Mapping[str, ir.Node],
    seconds: float,
    threads: int | None = None,
    given: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> tuple[tuple[FusedLayer, ...], dict[str, list[float]]]:
    """The kernels, and by name the milliseconds of each run (`seconds` 0: of one run)."""
    from optkit.ground import graph

    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = native_options(model, SessionOptions(threads, spinning=False))
        options.optimized_model_filepath = str(optimized)
        for key, value in (("file_name", "optimized.data"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(
                f"session.optimized_model_external_initializers_{key}", value
            )
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        with OrtSession(model, options) as session:
            feed = {t.name: _filled(t, shapes[t.name], given.get(t.name)) for t in session.inputs}
            session.run(feed)
            ends = time.monotonic() + seconds
            for _ in range(_RUNS):
                if time.monotonic() >= ends:
                    break
                session.run(feed)
            events = session.profile()
        runs: dict[str, Any] = {}
        spent: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                name = event["name"].removesuffix("_kernel_time")
                runs[name] = event["args"]
                spent.setdefault(name, []).append(event["dur"] / 1e3)  # from microseconds
        layers = parse_kernels(graph.load(optimized), runs, feed, nodes)
        return layers, {name: times[_WARMING:] or times for name, times in spent.items()}


def _filled(info: TensorInfo, shape: tuple[int, ...], array: np.ndarray | None) -> np.ndarray:
    """The array at this shape, except where the graph has a fixed size: codes of four bits are half
    as wide as the floats for which the sizes were planned. Zeros without one of this dtype."""
    planned = zip(info.shape, shape, strict=True)
    sizes = [dim if isinstance(dim, int) else size for dim, size in planned]
    if array is None or array.dtype != info.dtype or array.ndim != len(sizes) or not array.size:
        return np.zeros(sizes, info.dtype)
    for axis, size in enumerate(sizes):
        array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return array


def copy_graph(model: Path, loaded: ir.Model, file: Path) -> tuple[Path, int]:
    """Copy an ONNX file to `file`, with the files of its weights: (file, bytes of all)."""
    data = {model.parent / name for name in external_files(loaded)}
    shutil.copyfile(model, file)
    for path in data:
        shutil.copyfile(path, file.parent / path.name)
    return file, sum(path.stat().st_size for path in (model, *data))


def native_options(model: Path, asked: SessionOptions) -> NativeOptions:
    """The library's own options of a session on the CPU.

    If this CPU sums pairs of products in 16 bits and the weights of the model have more than 7
    bits, ONNX Runtime multiplies by their unsigned form, which is slower and exact
    ("session.x64quantprecision"). It does this from level "extended" on, so integer products get at
    least this level.
    """
    ort, info = library(), cpu()
    exact = sums_in_16_bits(info.machine, info.features) and _full_codes(model)
    level = asked.level
    if exact == "products" and level in ("basic", "none"):
        level = "extended"
    options: NativeOptions = ort.SessionOptions()
    options.intra_op_num_threads = asked.threads or info.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[level])
    options.enable_cpu_mem_arena = asked.pooled
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(asked.spinning)))
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4  # errors that matter become exceptions
    return options


def _full_codes(model: Path) -> Literal["products", "Q/DQ"] | None:
    """How a model multiplies by weights of more than 7 bits; None if it does not. A host that
    serves without the package onnx cannot tell: there, what is exact for every model."""
    try:
        from optkit.ground import graph
    except ModuleNotFoundError:
        return "products"
    loaded = graph.load(model)
    if not graph.assumes_vnni(loaded):
        return None
    return "products" if graph.multiplies_codes(loaded) else "Q/DQ"


def external_files(model: ir.Model) -> set[str]:
    """The names of the files of its weights, in the folder of the graph."""
    import onnx_ir as ir

    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return {str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)}
