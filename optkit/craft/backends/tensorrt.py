"""TensorRT: one implementation for the modules `tensorrt` and, in its subclass, `tensorrt_rtx`.

    ONNX ─parse→ network ─build(profile)──────────→ engine, its layers, its memory
                      └build(min = opt = max)───→ the same layers with all sizes, if the engine
                                                  itself does not list them

TensorRT-RTX compiles for a given compute capability, without a GPU. TensorRT builds on the device
itself. The graph determines the precision (strong typing), so one graph works with 10.x, 11 and
RTX. The library raises no exceptions: `parse` and the setters return False,
`build_serialized_network` returns None, and the reason is in the log. So every result is checked.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from optkit.craft.backends import build_options, plugin_library
from optkit.craft.backends.build_log import BuildMessages, Logger, logger, monitor
from optkit.craft.backends.build_log import reason as reason_of
from optkit.craft.backends.cuda import Cuda, check_device
from optkit.craft.backends.description import described, inspected
from optkit.craft.backends.engine_search import search
from optkit.craft.backends.engine_session import EngineSession
from optkit.craft.backends.kept import KernelFile
from optkit.craft.backends.landing import landing, products
from optkit.craft.backends.layer_list import MOVES_DATA, parse_memory
from optkit.craft.backends.shape_profile import Profile, batch, profile
from optkit.craft.backends.tensorrt_objects import (
    Builder,
    Config,
    Library,
    LoadedEngine,
    Network,
    OpenedContext,
    Parser,
    Runtime,
)
from optkit.craft.backends.tensorrt_refusals import (
    lacks_operators,
    nodes_of,
    parse,
    refused_build,
    without_kernel,
)
from optkit.facts.engines import BuildSpec, Engine
from optkit.facts.errors import Impossible, ToolchainMissing, WorkerFailed
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import Target, gpus, has_driver
from optkit.ground.execute.installed import installed
from optkit.ground.runtimes import DEFAULT_OPTIONS, Progress, Recurrent, SessionOptions, Traits

_BUILDING = threading.Lock()  # the library has one logger per process
_FAILED: set[str] = set()  # modules whose last build returned no engine


class TensorRT:
    """Full TensorRT: an engine is built on the device that will run it."""

    name = "tensorrt"
    traits = Traits(engine="plan", moves_data=MOVES_DATA)
    title = "TensorRT"
    module = "tensorrt"
    distribution = "tensorrt"
    install = "pip install 'optkit[tensorrt]' on a host with the GPU"
    no_kernel: Mapping[str, str] = MappingProxyType({})
    """Kinds of layers that the parser makes and the compiler refuses → the operator of ONNX."""
    records_launches = True  # the session records launches; TensorRT-RTX does so by itself

    def check(self) -> None:
        """Raise ToolchainMissing unless the library is installed and loads."""
        self._library()

    def offline(self, target: Target) -> str | None:
        """None if this machine can compile for the target, otherwise the reason in words."""
        if has_driver() and target.name in {gpu.target for gpu in gpus().devices}:
            return None
        return f"TensorRT builds an engine on the device that runs it: a host with {target.title}"

    def versions(self) -> dict[str, str]:
        """The version of the wheel, read without importing it; empty if it is not installed."""
        version = installed(self.distribution)
        return {} if version is None else {self.distribution: version}

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """Why this backend never runs a precision; None if it does."""
        if "gpu" in precision.runs_on:
            return None
        return f"{self.title} has no kernels for {precision}"

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """Symmetric codes, one scale per activation tensor, pairs on inputs only: the compiler
        moves each requantization into the kernel before it. Raises Impossible for NF4 and W4A8."""
        reason = self.refuses(target, precision)
        if reason is not None or precision.weights is None:
            raise Impossible(
                reason or f"{precision} quantizes nothing",
                where=f"{target.name} × {precision}",
                hint=f"{precision} runs on ONNX Runtime (--target cpu)",
            )
        products_only = precision.weight_codes_only or precision.weights.granularity == "block"
        rules = PlacementRules(
            activation=precision.activations,
            weight=precision.weights,
            ops=frozenset({"MatMul", "Gemm"} if products_only else {"Conv", "MatMul", "Gemm"}),
            residual_adds=not products_only,
            quantize_outputs=frozenset(),
            float_output=True,
            depthwise_conv="nowhere",
            blocks="halving",
            # TensorRT-RTX 1.7, of a network in INT8 or FP8: "convolution_common.cpp:27:
            # CHECK(nbdims_bias == 4 || nbdims_bias == 5) failed"
            biased_1d_to_one=products_only,
        )
        if precision.name == "int8" and target.compute_capability == "7.5":
            why = "compute capability 7.5 never multiplies INT8 convolutions"
            return replace(rules, excluded={"Conv": why})
        if precision.name == "fp8":
            why = "FP8 gains nothing for so few"
            return replace(
                rules, min_conv_channels=4, thin_conv=why, grouped_conv=False, max_kernel=32
            )
        return rules

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Target,
        precision: Precision,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Raises UsageError for a missing range, or an invalid one."""
        scratch = build_options.workspace(target)
        asked = {**build_options.options(target, axes), **self._options(target)}
        why = {"profile": build_options.one_profile(axes), "workspace_bytes": scratch.why}
        shapes = profile(inputs, axes)
        return build_options.build_spec(
            self.name, target, precision, shapes, asked, why, scratch.value
        )

    def accept(self, model: Path) -> None:
        """Let the parser read `model`, which takes milliseconds. Raises InputRefused for operators
        that the library does not have. Other errors do not count: the graph is not cast yet."""
        trt, log = self._library(), logger(self.module)
        with _BUILDING:
            log.record = BuildMessages()
            network, parser = self._parser(trt, self._builder(trt, log), model)
            if parser.parse_from_file(str(model)):
                if lacking := without_kernel(network, self.no_kernel):
                    raise lacks_operators(self.title, lacking)
                return
            problems = [parser.get_error(index) for index in range(parser.num_errors)]
            plugin_library.refuse_missing(problems, model)
            if unknown := [one for one in problems if one.code() == trt.ErrorCode.UNSUPPORTED_NODE]:
                raise lacks_operators(self.title, nodes_of(unknown))

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, Precision],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """Compile `model` into folder `out`. `planned`: node name → quantized precision; `kept`:
        the folder for the library's caches for this device.

        Raises ToolchainMissing, InputRefused (names the node), Impossible (the hardware lacks a
        dtype) or WorkerFailed (out of memory). An exception of `progress` cancels the build.
        """
        from optkit.ground import graph

        nodes = products(graph.load(model))
        optimum = {name: opt for name, (_, opt, _) in spec.profile.items()}
        at_opt = {name: (opt, opt, opt) for name, opt in optimum.items()}
        parts = 1 if at_opt == spec.profile else 2
        with _BUILDING:
            built = self._build(
                model, spec, spec.profile, lambda what, done: progress(what, done / parts), kept
            )
            built, found = search(
                lambda longer, watch: self._build(model, longer, spec.profile, watch, kept),
                built,
                spec,
                progress,
            )
            told = self._inspected(built.engine, optimum)
            shipped = counted = described([told, built.layers], nodes)
            if parts == 2 and not shipped.sized:  # the list of a dynamic engine may have no sizes
                fixed = self._build(
                    model, spec, at_opt, lambda what, done: progress(what, (1 + done) / parts), kept
                )
                told = self._inspected(fixed.engine, optimum)
                counted = described([told, fixed.layers], nodes)
        (out / f"{self.name}.engine").write_bytes(built.engine)
        return Engine(
            backend=self.name,
            target=spec.target,
            file=f"{self.name}.engine",
            bytes=len(built.engine),
            layers=shipped.layers or (),
            landing=landing(shipped.layers, nodes, planned),
            batch=batch(spec.profile),
            bytes_moved=counted.bytes_moved,
            static_layers=counted.layers or (),
            memory=parse_memory(built.memory),
            versions=self.versions(),
            note="; ".join(note for note in (found, shipped.note) if note) or None,
        )

    def session(self, model: Path, options: SessionOptions = DEFAULT_OPTIONS) -> Recurrent:
        """Load a verified engine on this machine's GPU.

        Raises ToolchainMissing without a driver or library, on a device of another model, or for an
        engine that the library does not load; WorkerFailed if there is no memory for its
        activations.
        """
        with ExitStack() as until_loaded:
            cuda = until_loaded.enter_context(Cuda())
            check_device(cuda.gpu, options.target, str(model))
            trt, log = self._library(), logger(self.module)
            log.record = record = BuildMessages()
            runtime: Runtime = trt.Runtime(log)
            plugin_library.load(trt, options.plugins, str(model), record)
            engine = runtime.deserialize_cuda_engine(model.read_bytes())
            if engine is None:
                raise ToolchainMissing(
                    f"{self.title} does not load this engine: "
                    f"{reason_of(record.errors) or 'it gives no reason'}",
                    where=str(model),
                    hint="build the engine again with the version that is installed here",
                )
            kept, versions = options.kept, self.versions()
            memory = KernelFile.of(kept, "kernels", cuda.gpu, versions) if kept else None
            context, done = self._context(trt, engine, options.cuda_graph, memory)
            if context is None:  # it holds the activations at their largest sizes
                reason = reason_of(record.errors) or "no execution context"
                raise WorkerFailed(reason, verdict="oom", where=str(model))
            session = EngineSession(
                trt,
                runtime,
                engine,
                context,
                cuda,
                where=str(model),
                reason=lambda: reason_of(log.record.errors) or "failed without a reason",
                wanted=options.cuda_graph,
                records=self.records_launches,
                done=done,
            )
            until_loaded.pop_all()
        return session

    def _context(
        self, trt: Library, engine: LoadedEngine, cuda_graph: bool, kept: KernelFile | None
    ) -> OpenedContext:
        """An execution context, and the function to call when it is closed."""
        return engine.create_execution_context(), lambda: None

    def _inspected(self, plan: bytes, shapes: dict[str, tuple[int, ...]]) -> str:
        """The library's description of an engine at these shapes, on this device; empty if it has
        none. After any error here the build continues, and the builder's log is read instead."""
        try:
            trt = self._library()
            with Cuda():
                runtime: Runtime = trt.Runtime(logger(self.module))
                engine = runtime.deserialize_cuda_engine(plan)
                lent = trt.ExecutionContextAllocationStrategy.USER_MANAGED  # takes no memory
                context = engine and engine.create_execution_context(lent)
                return inspected(trt, engine, context, shapes) if engine and context else ""
        except Exception:
            return ""

    def _build(
        self, model: Path, spec: BuildSpec, shapes: Profile, progress: Progress, kept: Path | None
    ) -> _Built:
        trt, log = self._library(), logger(self.module)
        log.record = record = BuildMessages()
        builder = self._builder(trt, log)
        if self.module in _FAILED:
            self._settle(trt, builder, spec)
        # the parser owns the weights: it must live longer than the build
        network, parser = self._parser(trt, builder, model)
        parse(parser, network, model, self.title, lambda: self._parser(trt, builder, model))
        config = builder.create_builder_config()
        build_options.apply(trt, config, spec, self.title)
        self._aim(trt, config, spec)
        build_options.write_profile(
            builder, network, config, shapes, self.title, lambda: reason_of(record.errors)
        )
        with self._timings(config, spec, kept, record) as save:

            def watch(what: str, done: float) -> None:
                save()
                progress(what, done)

            config.progress_monitor = monitor(trt, watch, record)
            plan = builder.build_serialized_network(network, config)
        if plan is None:
            _FAILED.add(self.module)
        if record.raised is not None:
            raise record.raised
        if plan is None:
            raise refused_build(self.title, spec, record.errors)
        return _Built(bytes(plan), record.layers, record.memory)

    def _parser(self, trt: Library, builder: Builder, model: Path) -> tuple[Network, Parser]:
        log = logger(self.module)
        plugin_library.load(trt, plugin_library.of(model), str(model), log.record)
        network = self._network(trt, builder)
        return network, trt.OnnxParser(network, log)

    def _builder(self, trt: Library, log: Logger) -> Builder:
        try:
            builder: Builder = trt.Builder(log)
        except TypeError as error:  # pybind11: the factory returned nullptr
            why = reason_of(log.record.errors) or error
            raise ToolchainMissing(
                f"{self.title} cannot start: {why}", hint=self.install
            ) from error
        return builder

    @contextmanager
    def _timings(
        self, config: Config, spec: BuildSpec, kept: Path | None, record: BuildMessages
    ) -> Iterator[Callable[[], None]]:
        """During a build: the timings of this device's kernels, which are read before it. The
        function is called meanwhile, to write them."""
        if kept is None or not spec.options.get("timing_cache"):
            yield lambda: None
            return
        with Cuda() as cuda:
            memory = KernelFile.of(kept, "timings", cuda.gpu, self.versions())
        with memory.alone():
            timings = config.create_timing_cache(memory.read())
            if not config.set_timing_cache(timings, False):
                raise ToolchainMissing(
                    f"the timing cache was not accepted: {reason_of(record.errors)}",
                    where=str(memory.file),
                    hint="remove the file",
                )
            # not tried on a device: whether the library can serialize timings while it builds
            with memory.saving(lambda: bytes(timings.serialize())) as save:
                yield save

    def _options(self, target: Target) -> dict[str, build_options.OptionValue]:
        """Options that TensorRT-RTX does not have."""
        return build_options.timed_options(target)

    def _network(self, trt: Library, builder: Builder) -> Network:
        return builder.create_network(
            1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)  # its number has changed
        )

    def _settle(self, trt: Library, builder: Builder, spec: BuildSpec) -> None:
        """Build a network that is not used. After a refused build, TensorRT-RTX 1.7 compiles the
        next network for the hardware of the refused one: after a refusal for compute capability
        7.5, all INT8 convolutions of a network for 8.9 are compiled in FP16."""
        network = self._network(trt, builder)
        tensor = network.add_input("x", trt.float32, (1,))
        layer = network.add_identity(tensor)
        network.mark_output(layer.get_output(0))
        config = builder.create_builder_config()
        self._aim(trt, config, spec)
        builder.build_serialized_network(network, config)
        _FAILED.discard(self.module)

    def _aim(self, trt: Library, config: Config, spec: BuildSpec) -> None:
        """TensorRT cannot choose a device. It uses the first one that the process sees, which must
        be the target. Raises ToolchainMissing."""
        if has_driver():
            with Cuda() as cuda:
                check_device(cuda.gpu, spec.target, self.title)

    def _library(self) -> Library:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise ToolchainMissing(f"{self.title} is not installed", hint=self.install) from error
        except (ImportError, OSError, RuntimeError) as error:  # a library of the wheel is missing
            raise ToolchainMissing(
                f"{self.title} does not load: {error}", hint=self.install
            ) from error


@dataclass(frozen=True)
class _Built:
    """An engine, and the rows of the log that describe it."""

    engine: bytes
    layers: str
    memory: list[str]
