"""ONNX Runtime's TensorRT-RTX provider: a plugin in a wheel of NVIDIA, which a process registers.

It compiles a graph to a context graph: ONNX with a node EPContext, which has the engine, for each
part that TensorRT-RTX runs. Kernels for the device are compiled when a context graph is opened, and
kept in a file. Unverified on a card: see docs/studies/gpu_hosts.md.
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from optkit.craft.backends.bound_session import BoundSession
from optkit.craft.backends.build_options import OptionValue, workspace
from optkit.craft.backends.cuda import Cuda, check_device, load
from optkit.craft.backends.onnxruntime import OnnxRuntime, native_options
from optkit.craft.backends.ort_objects import EpDevice, NativeOptions
from optkit.craft.backends.ort_providers import CudaProvider
from optkit.craft.backends.ort_session import CPU, Providers, library, refusal
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.engines import BuildSpec, Engine
from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target
from optkit.ground.execute.installed import installed
from optkit.ground.runtimes import Progress, SessionOptions

PROVIDER = "NvTensorRTRTXExecutionProvider"
MODULE = "onnxruntime_ep_nv_tensorrt_rtx"
WHEELS = tuple(f"onnxruntime-ep-nv-tensorrt-rtx{cuda}" for cuda in ("", "-cu13", "-cu12"))
"""Distributions: the first one depends on one of the others, which have the module."""

_TITLE = "ONNX Runtime's TensorRT-RTX provider"
_COMPATIBILITY = f"ep_compatibility_info.{PROVIDER}"


class TensorRTRTXProvider(CudaProvider):
    """NVIDIA GPUs through the TensorRT-RTX in the plugin's wheel; the CPU runs the other nodes."""

    name = "onnxruntime-tensorrt-rtx"
    title = _TITLE
    provider = PROVIDER
    device = "cpu"  # inputs and outputs: ONNX Runtime's wheel for CPUs cannot allocate elsewhere
    install = f"pip install {WHEELS[0]} on a host with the GPU"

    def check(self) -> None:
        """Raise ToolchainMissing unless the provider is installed and has a device here."""
        OnnxRuntime.check(self)
        devices()

    def versions(self) -> dict[str, str]:
        found = {name: installed(name) for name in WHEELS}
        plugin = {name: version for name, version in found.items() if version is not None}
        return {**super().versions(), **plugin}

    def refuses(self, target: Target, precision: Precision) -> str | None:
        return TensorRTRTX().refuses(target, precision)

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """As for TensorRT-RTX, because the same compiler reads the same Q/DQ."""
        return TensorRTRTX().rules(target, precision)

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, Precision],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """As for CUDA. It keeps nothing, because a context graph does not tell which nodes of the
        graph became its engines."""
        return super().compile(model, spec, planned, out, progress)

    def check_here(self, target: str | None, where: str) -> None:
        with Cuda() as cuda:
            check_device(cuda.gpu, target, where)

    def opened(
        self,
        model: Path,
        native: NativeOptions,
        providers: Providers,
        records: bool,
        compiled: Path | None,
    ) -> BoundSession:
        """A session of the graph; with a folder `compiled`, of the context graph in it, which is
        written there the first time."""
        _take(native, providers[0][1])
        if compiled is not None and not (context := compiled / "context.onnx").exists():
            with tempfile.TemporaryDirectory(dir=compiled) as part:  # others may write it too
                _compile(model, native, Path(part) / context.name)
                (Path(part) / context.name).replace(context)
        opened = model if compiled is None else context
        return super().opened(opened, native, providers, records, compiled)

    def write_context(self, model: Path, target: Target, out: Path) -> str:
        """Write the context graph of an ONNX file for the target, which must be here, and open it:
        what the provider tells of the devices that it fits (`compatibility_string` of a package).

        Raises ToolchainMissing, or InputRefused for a graph that the provider does not compile, or
        of which it leaves nodes to the CPU between others: then it does not tell what it fits.
        """
        from optkit.ground import graph

        self.check()
        self.check_here(target.name, str(model))
        native = native_options(model, SessionOptions(target=target.name))
        providers = self.providers(target, False)
        _take(native, providers[0][1])
        _compile(model, native, out)
        fits = graph.metadata(out).get(_COMPATIBILITY)
        if fits is None:
            raise InputRefused(
                f"{_TITLE} compiles it in several parts, and does not tell which devices they fit",
                where=str(model),
            )
        super().opened(out, native, providers, False, None).close()
        return fits

    def settings(self, target: Target | None) -> dict[str, OptionValue]:
        """The network is always strongly typed, like the graph."""
        limit = None if target is None else workspace(target)
        if limit is None or limit.value is None:
            return {}
        return {"nv_max_workspace_size": OptionValue(*limit)}

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        """No option names the device, because a session gets devices, not their numbers."""
        asked = {name: str(choice.value) for name, choice in self.settings(target).items()}
        kernels = {} if compiled is None else {"nv_runtime_cache_path": str(compiled)}
        return ((self.provider, {**asked, **kernels}), CPU)


def devices() -> Sequence[EpDevice]:
    """The devices of the provider, which is registered in this process the first time.

    Raises ToolchainMissing without the wheel, ONNX Runtime 1.24, a driver or a device.
    """
    ort = library()
    if not hasattr(ort, "register_execution_provider_library"):
        raise ToolchainMissing(
            f"{_TITLE} is a plugin, and ONNX Runtime {ort.__version__} takes no plugins",
            hint="pip install 'optkit[cpu]'",
        )
    if not (found := _listed(ort)):  # the application may have registered it under any name
        _register()
        found = _listed(ort)
    if not found:
        raise ToolchainMissing(
            f"{_TITLE} finds no device: it runs on NVIDIA GPUs of compute capability 8.6, 8.9, and "
            "12.0 or newer",
            hint="`optkit devices` lists the GPUs",
        )
    return found


def _listed(ort: ModuleType) -> Sequence[EpDevice]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


@cache
def _register() -> None:
    """Register the plugin; an error is not remembered."""
    if importlib.util.find_spec(MODULE) is None:
        raise ToolchainMissing(f"{_TITLE} is not installed", hint=TensorRTRTXProvider.install)
    load()  # says in words that there is no driver, and finds that of Windows
    # loads TensorRT-RTX, where its plugin finds it
    place = Path(importlib.import_module(MODULE).get_library_path())
    _load_runtime(place.parent)
    try:
        library().register_execution_provider_library(PROVIDER, str(place))
    except Exception as error:  # of the library, directly derived from Exception
        if "already registered" in str(error):  # by the application, and it has no device
            return
        raise ToolchainMissing(
            f"{_TITLE} does not load: {error}",
            hint="it needs the driver of CUDA 13 (its wheel for cu12: of CUDA 12)",
        ) from error


def _load_runtime(folder: Path) -> None:
    """Load the CUDA runtime that the plugin needs: the wheel has one, under a name with its whole
    version, where no loader finds it."""
    for file in folder.glob("libcudart.so.*"):
        for path in (".".join(file.name.split(".")[:3]), str(file)):
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError:
                continue


def _take(native: NativeOptions, settings: Mapping[str, str]) -> None:
    """Have a session run on the first device of the provider. It is not named as others are,
    because ONNX Runtime 1.27 takes a plugin of this name for its own provider."""
    native.add_provider_for_devices(devices()[:1], dict(settings))


def _compile(model: Path, native: NativeOptions, out: Path) -> None:
    """Write the context graph, with the engines in it. Raises InputRefused."""
    try:
        ort = library()
        nothing = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
        compiler = ort.ModelCompiler(
            native, str(model), embed_compiled_data_into_model=True, flags=nothing
        )
        compiler.compile_to_file(str(out))
    except Exception as error:  # of the library, directly derived from Exception
        out.unlink(missing_ok=True)
        raise refusal(error, str(model)) from error
