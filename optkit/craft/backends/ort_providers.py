"""ONNX Runtime on other devices than the CPU: its CUDA, TensorRT and CoreML execution providers.

ONNX Runtime falls back to the CPU without a message. Therefore optkit checks that the wheel has the
provider, that the session lists it, and that every node that multiplies is assigned to it. Inputs
and outputs are bound to the device. As on the CPU, the engine is the graph itself. Option names are
those of ONNX Runtime's sources. CUDA ran on an H200; the others are unverified on a card or a Mac
(docs/studies/gpu_hosts.md).
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Container, Mapping
from pathlib import Path

from optkit.craft.backends.bound_session import BoundSession
from optkit.craft.backends.build_options import OptionValue, build_spec, timed_options, workspace
from optkit.craft.backends.cuda import Cuda, check_device
from optkit.craft.backends.landing import landing, products
from optkit.craft.backends.onnxruntime import (
    OnnxRuntime,
    copy_graph,
    external_files,
    native_options,
)
from optkit.craft.backends.ort_objects import NativeOptions
from optkit.craft.backends.ort_session import CPU, Providers, library
from optkit.craft.backends.shape_profile import batch, profile
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_libraries import preload
from optkit.facts.engines import BuildSpec, Engine, FusedLayer
from optkit.facts.errors import Impossible, ToolchainMissing
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import Gpu, Target, gpus
from optkit.ground.devices import target as target_of
from optkit.ground.execute.installed import installed
from optkit.ground.runtimes import DEFAULT_OPTIONS, Progress, SessionOptions, Traits
from optkit.ground.store import compiled_folder, digest_file, digest_json

_GPU_WHEEL = "pip uninstall -y onnxruntime && pip install 'optkit[gpu]' on a host with the GPU"


class CudaProvider(OnnxRuntime):
    """NVIDIA GPUs through CUDA and cuDNN, in floats. It builds no engine, and runs any graph at
    once."""

    name = "onnxruntime-cuda"
    traits = Traits(engine="graph", memory=None)
    title = "ONNX Runtime's CUDA provider"
    provider = "CUDAExecutionProvider"
    device = "cuda"
    install = _GPU_WHEEL

    def check(self) -> None:
        """Raise ToolchainMissing unless exactly one wheel is installed and has the provider."""
        super().check()
        ort = library()
        if self.provider not in ort.get_available_providers():
            raise ToolchainMissing(
                f"the installed ONNX Runtime {ort.__version__} has no {self.provider}",
                hint=self.install,
            )

    def offline(self, target: Target) -> str | None:
        """None when this machine has the device."""
        if target.name in {gpu.target for gpu in gpus().devices}:
            return None
        return f"{self.title} prepares a graph on the device: a host with {target.title}"

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """Only floats run; codes would be converted to floats before every product."""
        if not precision.quantized:
            return None
        return f"{self.title} multiplies in floats only"

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """Raises Impossible, because this backend quantizes nothing."""
        raise Impossible(
            self.refuses(target, precision) or f"{precision} quantizes nothing",
            where=f"{target.name} × {precision}",
        )

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Target,
        precision: Precision,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Raises UsageError for a missing range, or an invalid one."""
        fixed = all(span.min == span.max for span in axes.values())
        asked = {
            **self.settings(target),
            "cuda_graph": OptionValue(
                fixed and self.device == "cuda",
                "launches are recorded where every size is fixed"
                if self.device == "cuda"
                else "there are no CUDA graphs",
            ),
        }
        why = {"profile": "any size runs; nodes are assigned at the optimum"}
        return build_spec(self.name, target, precision, profile(inputs, axes), asked, why)

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, Precision],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """Copy the graph into folder `out` and list the nodes that the provider runs, on its
        device.

        Raises ToolchainMissing, also if it does not run all nodes that multiply, or InputRefused.
        """
        from optkit.ground import graph

        loaded = graph.load(model)
        progress("assigning nodes", 0.2)
        with self.session(model, SessionOptions(target=spec.target, kept=kept)) as session:
            assigned = session.assigned()
        file, size = copy_graph(model, loaded, out / f"{self.name}.onnx")
        nodes = products(loaded)
        layers = tuple(_layer(at, group, nodes) for at, group in enumerate(assigned))
        return Engine(
            backend=self.name,
            target=spec.target,
            file=file.name,
            bytes=size,
            layers=layers,
            landing=landing(layers, nodes, planned),
            batch=batch(spec.profile),
            static_layers=layers,
            versions=self.versions(),
            note=f"{self.title} tells which nodes it took, not in what they multiply",
        )

    def session(self, model: Path, options: SessionOptions = DEFAULT_OPTIONS) -> BoundSession:
        """Load an ONNX file on the device, with the limits of the target for which it was built.
        The CPU runs the nodes that the provider does not run.

        Raises ToolchainMissing without the provider or the device, on a device of another model,
        and if nodes that multiply are assigned to another provider.
        """
        self.check()
        self.check_here(options.target, str(model))
        compiled = None
        if options.kept is not None:
            compiled = _own_folder(options.kept, model, self.versions())
        native = native_options(model, options)
        native.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        target = None if options.target is None else target_of(options.target)
        providers = self.providers(target, options.cuda_graph, options.kept, compiled)
        session = self.opened(model, native, providers, options.cuda_graph, compiled)
        try:
            session.verify()
        except ToolchainMissing:
            session.close()
            raise
        return session

    def opened(
        self,
        model: Path,
        native: NativeOptions,
        providers: Providers,
        records: bool,
        compiled: Path | None,
    ) -> BoundSession:
        """A session of the graph with these options. `compiled`: as for `providers`."""
        return BoundSession(model, native, providers, self.device, records=records)

    def check_here(self, target: str | None, where: str) -> None:
        """Raise ToolchainMissing unless this machine has the target's device."""
        with Cuda() as cuda:
            check_device(cuda.gpu, target, where)
        library().preload_dlls()  # from the wheels of the extra

    def settings(self, target: Target | None) -> dict[str, OptionValue]:
        """Options of the provider, with the reason for each. Pure."""
        limit = {} if target is None else _arena(target)
        return {
            **limit,
            "arena_extend_strategy": OptionValue(
                "kSameAsRequested", "memory grows by what is asked, not by powers of two"
            ),
            "cudnn_conv_algo_search": OptionValue(
                "EXHAUSTIVE", "convolutions are timed once, when the graph first runs"
            ),
            "use_tf32": OptionValue("0", "fp32 means IEEE single precision"),
        }

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        """The providers of a session, with the CPU last, which computes shapes. `kept`: the folder
        for timings of kernels; `compiled`: the one for what is compiled of this model."""
        asked = {name: str(choice.value) for name, choice in self.settings(target).items()}
        recorded = {"enable_cuda_graph": "1"} if cuda_graph else {}
        return ((self.provider, {"device_id": "0", **asked, **recorded}), CPU)


class TensorRTProvider(CudaProvider):
    """NVIDIA GPUs through the TensorRT with which ONNX Runtime was built; CUDA runs the other
    nodes."""

    name = "onnxruntime-tensorrt"
    title = "ONNX Runtime's TensorRT provider"
    provider = "TensorrtExecutionProvider"

    def check_here(self, target: str | None, where: str) -> None:
        """As for CUDA. It also raises if the TensorRT of the provider does not load."""
        super().check_here(target, where)
        preload(Path(str(library().__file__)).parent)

    def refuses(self, target: Target, precision: Precision) -> str | None:
        return TensorRT().refuses(target, precision)

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """As for TensorRT, because the same compiler reads the same Q/DQ."""
        return TensorRT().rules(target, precision)

    def settings(self, target: Target | None) -> dict[str, OptionValue]:
        """Precision flags stay unset, so the network is strongly typed, like the graph."""
        if target is None:
            return {}
        timed, scratch = timed_options(target), workspace(target)
        memory = {} if scratch.value is None else {"trt_max_workspace_size": OptionValue(*scratch)}
        return {**memory, "trt_builder_optimization_level": timed["optimization_level"]}

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        asked = {name: str(choice.value) for name, choice in self.settings(target).items()}
        if cuda_graph:
            asked["trt_cuda_graph_enable"] = "1"
        if kept is not None:
            asked |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": str(kept)}
        if compiled is not None:
            asked |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(compiled)}
        cuda = CudaProvider().providers(target, False)
        return ((self.provider, {"device_id": "0", **asked}), *cuda)


class CoreMLProvider(CudaProvider):
    """Apple's GPU and neural engine through Core ML."""

    name = "onnxruntime-coreml"
    title = "ONNX Runtime's CoreML provider"
    provider = "CoreMLExecutionProvider"
    device = "cpu"  # one memory for CPU and GPU
    install = "pip install 'optkit[cpu]' on macOS"

    def offline(self, target: Target) -> str | None:
        """None on a Mac with the target's processor."""
        chip = _apple_chip()
        if chip is not None and chip.target == target.name:
            return None
        return f"{self.title} prepares a graph on the device: a Mac with {target.title}"

    def check_here(self, target: str | None, where: str) -> None:
        """Raise ToolchainMissing unless this is a Mac with the target's processor."""
        chip = _apple_chip()
        if chip is None:
            raise ToolchainMissing(
                f"built for {target or 'Apple'}, but this machine runs {platform.system()}",
                where=where,
                hint="run it on a Mac with Apple's own processor",
            )
        check_device(chip, target, where)

    def settings(self, target: Target | None) -> dict[str, OptionValue]:
        return {
            "ModelFormat": OptionValue(
                "MLProgram", "takes FP16 and more operators than NeuralNetwork"
            ),
            "MLComputeUnits": OptionValue(
                "ALL", "Core ML chooses among CPU, GPU and neural engine"
            ),
        }

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        asked = {name: str(choice.value) for name, choice in self.settings(target).items()}
        cache = {} if compiled is None else {"ModelCacheDirectory": str(compiled)}
        return ((self.provider, {**asked, **cache}), CPU)


def _own_folder(kept: Path, model: Path, versions: Mapping[str, str]) -> Path:
    """The folder for what a provider compiles of this model on this device. The providers find
    their files by names of values or by the path of the model, and would take those of an
    older model: so each content of the graph and its weights has a folder of its own, and so has
    each version of a library or driver. `optkit cache gc` removes those not used for long."""
    from optkit.ground import graph

    files = (model, *(model.parent / name for name in external_files(graph.load(model))))
    key = [
        sorted(digest_file(file) for file in files),
        {**versions, "tensorrt": installed("tensorrt")},
        [[gpu.name, gpu.driver] for gpu in gpus().devices],
    ]
    return compiled_folder(kept, digest_json(key))


def _layer(
    at: int, group: tuple[str, list[tuple[str, str]]], multiplied: Container[str]
) -> FusedLayer:
    """The nodes that a provider runs as one, as a layer of which only the nodes are known."""
    provider, nodes = group
    names = tuple(name for name, _ in nodes)
    kind = nodes[0][1] if len(nodes) == 1 else provider.removesuffix("ExecutionProvider")
    kept = tuple(name for name in names if name in multiplied)
    return FusedLayer(f"{at} {kind}", kind, (), (), (), names, kept)


def _arena(target: Target) -> dict[str, OptionValue]:
    """The limit of the provider's own memory, if the memory of the target is known."""
    if target.marketed_memory_bytes is None:
        return {}
    why = "three quarters of the memory: CUDA, cuDNN and the display need the rest"
    return {"gpu_mem_limit": OptionValue(target.marketed_memory_bytes * 3 // 4, why)}


def _apple_chip() -> Gpu | None:
    """Apple's processor with its GPU, as the system names it; None on other machines."""
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return None
    asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return Gpu(0, told.strip(), None, "", None)
