"""TensorRT-RTX: compiles ahead of time for a given compute capability, on any machine.

The differences from TensorRT: the caller names the target; kernels are compiled when an engine is
loaded on its device, and stored there; nothing is timed, so there are no options for it.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from optkit.craft.backends.build_options import OptionValue
from optkit.craft.backends.kept import KernelFile
from optkit.craft.backends.plugin_library import link_parser
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_objects import Config, Library, LoadedEngine, OpenedContext
from optkit.facts.engines import BuildSpec
from optkit.facts.errors import ToolchainMissing
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target

_CAPABILITIES = {
    "7.5": "SM75",
    "8.0": "SM80",
    "8.6": "SM86",
    "8.9": "SM89",
    "12.0": "SM120",
    "12.1": "SM121",
}


class TensorRTRTX(TensorRT):
    """An engine for any GPU of a compute capability, built without a GPU."""

    name = "tensorrt-rtx"
    traits = replace(TensorRT.traits, any_machine=True, distribution="tensorrt-rtx")
    title = "TensorRT-RTX"
    module = "tensorrt_rtx"
    distribution = "tensorrt-rtx"
    install = "pip install 'optkit[rtx]'"
    no_kernel = MappingProxyType({"NMS": "NonMaxSuppression"})
    records_launches = False

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """As for TensorRT. Also FP32, for which it has no products at compute capability 7.5."""
        if precision.name == "fp32" and target.compute_capability == "7.5":
            return f"{self.title} has no FP32 matrix products for compute capability 7.5"
        return super().refuses(target, precision)

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
        """As for TensorRT, but with the scales of the channels after each product and a scalar
        scale before it. With a scale per channel before it, convolutions write floats (nearly twice
        the bytes), and a projection that is split after the product (merged Q, K, V) does not run
        in INT8, even if only weights are quantized. The same holds for NVFP4. The kernel of the
        product itself reads INT4 blocks if there are two or more of them, whatever follows; it
        never reads INT8 blocks."""
        rules = super().rules(target, precision)
        alone = rules.weight.dtype == "int4"
        return rules if alone else replace(rules, split_scale=rules.ops)

    def offline(self, target: Target) -> str | None:
        """None for a compute capability for which TensorRT-RTX compiles."""
        if target.compute_capability in _CAPABILITIES:
            return None
        return (
            f"TensorRT-RTX compiles for compute capability {', '.join(_CAPABILITIES)}; "
            f"{target.title} has {target.compute_capability or 'none'}"
        )

    def _library(self) -> Library:
        link_parser()
        return super()._library()

    def _options(self, target: Target) -> dict[str, OptionValue]:
        """No options: kernels are compiled for the device on which the engine is loaded."""
        return {}

    def _context(
        self, trt: Library, engine: LoadedEngine, cuda_graph: bool, kept: KernelFile | None
    ) -> OpenedContext:
        """An execution context with the kernels that were compiled for this device before. The
        library itself rejects kernels of another driver or version, and starts with an empty
        cache."""
        runtime_config = engine.create_runtime_config()
        strategy = trt.CudaGraphStrategy
        wanted = strategy.WHOLE_GRAPH_CAPTURE if cuda_graph else strategy.DISABLED
        runtime_config.cuda_graph_strategy = wanted
        if kept is None:
            return engine.create_execution_context(runtime_config), lambda: None
        kernels = runtime_config.create_runtime_cache()
        if known := kept.read():
            kernels.deserialize(known)
        if not runtime_config.set_runtime_cache(kernels):
            raise ToolchainMissing("the kernel cache was not accepted", where=str(kept.file))
        context = engine.create_execution_context(runtime_config)
        return context, lambda: kept.write(bytes(kernels.serialize()))

    def _inspected(self, plan: bytes, shapes: dict[str, tuple[int, ...]]) -> str:
        """No description: the device of this machine may be another one, and the builder's log has
        all layers."""
        return ""

    def _aim(self, trt: Library, config: Config, spec: BuildSpec) -> None:
        """Set the single target. Without it, the builder checks no dtype against the hardware."""
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
