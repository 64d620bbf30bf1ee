"""TensorRT and TensorRT-RTX: one implementation over the modules `tensorrt` and `tensorrt_rtx`.

    ONNX ─parse→ network ─build(profile)──────────→ engine, its layers, its memory
                        └build(min = opt = max)───→ the same layers with every size known

TensorRT-RTX compiles for a compute capability it is told, without a GPU. TensorRT builds on the
device itself. Precision is in the graph (strong typing), so one graph goes to 10.x, 11 and RTX.
Nothing here raises by itself: `parse` and the setters return False, `build_serialized_network`
returns None, and the reason is in the log; so every return is checked.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from optkit import precision as schemes
from optkit.backends.build_log import Phases
from optkit.backends.build_log import reason as reason_of
from optkit.backends.landing import landing, products
from optkit.backends.layer_list import HEADER, parse_layers, parse_memory
from optkit.backends.profile import Profile, batch, profile
from optkit.errors import Impossible, InputRefused, OptkitError, ToolchainMissing, WorkerFailed
from optkit.runtime import (
    AxisRange,
    BuildSpec,
    Engine,
    PlacementRules,
    Progress,
    Recurrent,
    TensorInfo,
)
from optkit.target import Target, gpus

_DRIVER = Path("/proc/driver/nvidia/version")
_BUILDING = threading.Lock()  # the library has one logger per process
_FAILED: set[str] = set()  # modules whose last build gave nothing


class TensorRT:
    """Full TensorRT: an engine is built on the device that will run it."""

    name = "tensorrt"
    title = "TensorRT"
    module = "tensorrt"
    distribution = "tensorrt"
    install = "pip install 'optkit[tensorrt]' on a host with the GPU"

    def check(self) -> None:
        """Raise ToolchainMissing unless the library is installed and loads."""
        self._library()

    def offline(self, target: Target) -> str | None:
        """None when this machine can compile for the target, else the reason in words."""
        if _DRIVER.exists() and target.name in {gpu.target for gpu in gpus().devices}:
            return None
        return f"TensorRT builds an engine on the device that runs it: a host with {target.title}"

    def versions(self) -> dict[str, str]:
        """The wheel's version, read without importing it; empty when it is not installed."""
        try:
            return {self.distribution: importlib.metadata.version(self.distribution)}
        except importlib.metadata.PackageNotFoundError:
            return {}

    def refuses(self, target: Target, precision: str) -> str | None:
        """Why this backend never runs a precision; None where it does."""
        if schemes.precision(precision).needs:
            return None
        return f"{self.title} has no kernels for {precision}"

    def rules(self, target: Target, precision: str) -> PlacementRules:
        """Symmetric codes, one scale per activation tensor, on inputs only: the compiler moves each
        requantization into the kernel in front of it. Raises Impossible for NF4 and W4A8."""
        scheme = schemes.precision(precision)
        reason = self.refuses(target, precision)
        if reason is not None or scheme.weights is None:
            raise Impossible(
                reason or f"{precision} quantizes nothing",
                where=f"{target.name} × {precision}",
                hint=f"{precision} runs on ONNX Runtime (--target cpu)",
            )
        products_only = scheme.weight_only or scheme.weights.granularity == "block"
        rules = PlacementRules(
            activation=scheme.activations,
            weight=scheme.weights,
            ops=frozenset({"MatMul", "Gemm"} if products_only else {"Conv", "MatMul", "Gemm"}),
            residual_adds=not products_only,
            quantize_outputs=frozenset(),
            float_output=True,
            blocks="halving",
        )
        if precision == "int8" and target.compute_capability == "7.5":
            why = "compute capability 7.5 never multiplies INT8 convolutions"
            return replace(rules, excluded={"Conv": why})
        if precision == "fp8":
            why = "FP8 gains nothing for so few"
            return replace(
                rules, min_conv_channels=4, thin_conv=why, grouped_conv=False, max_kernel=32
            )
        return rules

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Target,
        precision: str,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Raises UsageError for a missing range, or one that is none."""
        return BuildSpec(
            backend=self.name,
            target=target.name,
            compute_capability=target.compute_capability,
            precision=precision,
            profile=profile(inputs, axes),
            workspace_bytes=target.memory_bytes // 2 if target.memory_bytes else None,
            options={"strongly_typed": True, "tf32": False, "profiling_verbosity": "DETAILED"},
            reasons={
                "profile": "one profile: each further one would store the weights again",
                "workspace_bytes": "half of the target's memory; weights and activations need room",
                "strongly_typed": "precision is in the graph; TensorRT 11 knows nothing else",
                "tf32": "fp32 means IEEE single precision",
                "profiling_verbosity": "the builder lists its fused layers; the engine is the same",
            },
        )

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, str],
        out: Path,
        progress: Progress,
    ) -> Engine:
        """Compile `model` into folder `out`; `planned`: node name → quantized precision.

        Raises ToolchainMissing, InputRefused (names the node), Impossible (the hardware lacks a
        dtype) or WorkerFailed (out of memory). What `progress` raises cancels the build.
        """
        from optkit import graph

        nodes = products(graph.load(model))
        at_opt = {name: (opt, opt, opt) for name, (_, opt, _) in spec.profile.items()}
        parts = 1 if at_opt == spec.profile else 2
        with _BUILDING:
            built = self._build(
                model, spec, spec.profile, lambda what, done: progress(what, done / parts)
            )
            counted = built
            if parts == 2:  # a dynamic engine's list has no sizes
                counted = self._build(
                    model, spec, at_opt, lambda what, done: progress(what, (1 + done) / parts)
                )
        (out / f"{self.name}.engine").write_bytes(built.engine)
        layers = parse_layers(built.layers, nodes)
        static = layers if counted is built else parse_layers(counted.layers, nodes)
        moved = [layer.bytes_moved for layer in static]
        return Engine(
            backend=self.name,
            target=spec.target,
            file=f"{self.name}.engine",
            bytes=len(built.engine),
            layers=layers,
            landing=landing(layers, nodes, planned),
            batch=batch(spec.profile),
            bytes_moved=None if None in moved else sum(size or 0 for size in moved),
            static_layers=static,
            memory=parse_memory(built.memory),
            versions=self.versions(),
        )

    def session(self, model: Path, **options: Any) -> Recurrent:
        """Raise ToolchainMissing: an engine runs on its target, which optkit does not do yet."""
        raise ToolchainMissing(
            f"running a {self.title} engine needs its target and is not built yet",
            where=str(model),
            hint="the ONNX graph beside the engine runs through the onnxruntime backend",
        )

    def _build(
        self,
        model: Path,
        spec: BuildSpec,
        shapes: Profile,
        progress: Progress,
    ) -> _Built:
        trt = self._library()
        logger, record = _logger(self.module), _Record()
        logger.record = record
        try:
            builder = trt.Builder(logger)
        except TypeError as error:  # pybind11: the factory returned nullptr
            raise ToolchainMissing(
                f"{self.title} cannot start: {reason_of(record.errors) or error}", hint=self.install
            ) from error
        if self.module in _FAILED:
            self._settle(trt, builder, spec)
        network = self._network(trt, builder)
        parser = trt.OnnxParser(network, logger)  # owns the weights: must outlive the build
        self._parse(parser, network, model)
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        config.clear_flag(trt.BuilderFlag.TF32)
        if spec.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, spec.workspace_bytes)
        self._aim(trt, config, spec)
        self._set_shapes(builder, network, config, shapes, record)
        config.progress_monitor = _monitor(trt, progress, record)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            _FAILED.add(self.module)
        if record.raised is not None:
            raise record.raised
        if plan is None:
            raise self._refusal(spec, record.errors)
        return _Built(bytes(plan), record.layers, record.memory)

    def _network(self, trt: Any, builder: Any) -> Any:
        return builder.create_network(
            1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)  # its number has moved
        )

    def _settle(self, trt: Any, builder: Any, spec: BuildSpec) -> None:
        """Build a network that nobody wants. TensorRT-RTX 1.7 compiles the one after a refused
        build for the hardware that refused, whatever it is told: after a refusal for compute
        capability 7.5 all INT8 convolutions of a network for 8.9 come out in FP16."""
        network = self._network(trt, builder)
        tensor = network.add_input("x", trt.float32, (1,))
        layer = network.add_identity(tensor)
        network.mark_output(layer.get_output(0))
        config = builder.create_builder_config()
        self._aim(trt, config, spec)
        builder.build_serialized_network(network, config)
        _FAILED.discard(self.module)

    def _parse(self, parser: Any, network: Any, model: Path) -> None:
        """Read the ONNX file, and its external data, into `network`."""
        if parser.parse_from_file(str(model)) and network.num_outputs:
            return
        if not parser.num_errors:
            raise InputRefused("the graph has no outputs", where=str(model))
        problem = parser.get_error(0)
        operator, what = problem.node_operator(), reason_of([problem.desc()])
        if what == "false" or "Plugin not found" in what:  # all it says of such a node
            what = f"{self.title} has no operator {operator}"
        if parser.num_errors > 1:
            what += f" (and {parser.num_errors - 1} more problems)"
        where = f"node {problem.node_name()!r} ({operator})" if operator else str(model)
        raise InputRefused(what, where=where)

    def _aim(self, trt: Any, config: Any, spec: BuildSpec) -> None:
        """TensorRT has no choice of device: it is the one the process sees."""

    def _set_shapes(
        self, builder: Any, network: Any, config: Any, shapes: Profile, record: _Record
    ) -> None:
        """One optimization profile over the inputs that have a dynamic axis."""
        optimization = builder.create_optimization_profile()
        tensors = [network.get_input(index) for index in range(network.num_inputs)]
        dynamic = [tensor.name for tensor in tensors if -1 in tensor.shape]
        for name in dynamic:
            if name not in shapes:
                raise InputRefused("a dynamic input has no shapes", where=f"input {name!r}")
            optimization.set_shape(name, *shapes[name])
        if dynamic and config.add_optimization_profile(optimization) < 0:
            raise InputRefused(f"shapes refused: {reason_of(record.errors)}", where=self.title)

    def _refusal(self, spec: BuildSpec, errors: list[str]) -> OptkitError:
        """The typed error for what the builder logged when it returned nothing."""
        reason = reason_of(errors) or "the build failed without a reason"
        where = f"{self.title} for {spec.target}"
        if match := re.search(r"model contains HW-specific datatypes: ([\w, ]+)", reason):
            kinds = match[1].replace("b16", "bf16")
            return Impossible(f"the hardware has no {kinds}", where=where)
        if match := re.search(r"Cannot compile operation '(.*?)' for (.*)", reason):
            return Impossible(match[2], where=f"{where}: node {match[1]!r}")
        if re.search(r"out ?of ?memory|bad_alloc", reason, re.IGNORECASE):
            return WorkerFailed(reason, verdict="oom", where=where)
        return InputRefused(reason, where=where)

    def _library(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise ToolchainMissing(f"{self.title} is not installed", hint=self.install) from error
        except (ImportError, OSError, RuntimeError) as error:  # a library of the wheel is absent
            raise ToolchainMissing(
                f"{self.title} does not load: {error}", hint=self.install
            ) from error


class TensorRTRTX(TensorRT):
    """TensorRT-RTX: compiles ahead of time, for a compute capability it is told, on any machine."""

    name = "tensorrt-rtx"
    title = "TensorRT-RTX"
    module = "tensorrt_rtx"
    distribution = "tensorrt-rtx"
    install = "pip install 'optkit[rtx]'"

    def refuses(self, target: Target, precision: str) -> str | None:
        """As TensorRT; and FP32, whose products it has none of for compute capability 7.5."""
        if precision == "fp32" and target.compute_capability == "7.5":
            return f"{self.title} has no FP32 matrix products for compute capability 7.5"
        return super().refuses(target, precision)

    def rules(self, target: Target, precision: str) -> PlacementRules:
        """As TensorRT, with the channels' scales behind each product and a scalar in front of it.
        A scale per channel in front makes convolutions write Float (nearly twice the bytes), and a
        projection that is taken apart behind (merged Q, K, V) falls out of INT8, with weights alone
        quantized too. So does one in NVFP4. Blocks of INT4 are read by the product's own kernel
        where there are two or more of them, whatever is behind; blocks of INT8 never are."""
        rules = super().rules(target, precision)
        alone = rules.weight.dtype == "int4"
        return rules if alone else replace(rules, split_scale=rules.ops)

    def offline(self, target: Target) -> str | None:
        """None for a compute capability that TensorRT-RTX compiles for."""
        if target.compute_capability in _CAPABILITIES:
            return None
        return (
            f"TensorRT-RTX compiles for compute capability {', '.join(_CAPABILITIES)}; "
            f"{target.title} has {target.compute_capability or 'none'}"
        )

    def _aim(self, trt: Any, config: Any, spec: BuildSpec) -> None:
        """Name the one target. Without it the builder checks no dtype against the hardware."""
        wanted = _CAPABILITIES.get(spec.compute_capability or "")
        config.num_compute_capabilities = 1
        if wanted is None or not config.set_compute_capability(
            getattr(trt.ComputeCapability, wanted), 0
        ):
            raise ToolchainMissing(
                f"TensorRT-RTX does not compile for compute capability {spec.compute_capability}",
                where=spec.target,
                hint="build a full TensorRT engine on the device itself",
            )


_CAPABILITIES = {
    "7.5": "SM75", "8.0": "SM80", "8.6": "SM86", "8.9": "SM89", "12.0": "SM120", "12.1": "SM121",
}  # fmt: skip


@dataclass(frozen=True)
class _Built:
    """An engine and the log rows that describe it."""

    engine: bytes
    layers: str
    memory: list[str]


@dataclass
class _Record:
    """What one build logged, as far as it is used, and what a callback raised."""

    layers: str = ""
    memory: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    raised: BaseException | None = None

    def take(self, severity: str, message: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(message)
        elif message.startswith(HEADER):
            self.layers = message
        elif severity == "INFO" and "Memory" in message:
            self.memory.append(message)


@cache
def _logger(module: str) -> Any:
    """The process's one logger: the library ignores a second one while anything lives."""
    trt = importlib.import_module(module)

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.record = _Record()

        def log(self, severity: Any, message: str) -> None:
            try:
                self.record.take(severity.name, message)
            except BaseException as error:  # an interrupt; the library would print and forget it
                self.record.raised = error

    return Logger()


def _monitor(trt: Any, progress: Progress, record: _Record) -> Any:
    """The builder's progress as one rising fraction; an exception of `progress` cancels."""
    phases = Phases()

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            phases.start(name, parent, steps)

        def phase_finish(self, name: str) -> None:
            phases.finish(name)

        def step_complete(self, name: str, step: int) -> bool:
            try:
                progress(name, phases.step(name, step))
            except BaseException as error:  # must not pass through the library
                record.raised = record.raised or error
            return record.raised is None

    return Monitor()
