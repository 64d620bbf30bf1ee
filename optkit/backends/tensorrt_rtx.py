"""TensorRT-RTX: compiles ahead of time, for a compute capability it is told, on any machine.

What it does otherwise than TensorRT: the target is named, not found; kernels are made when an
engine is loaded on its device and kept there; nothing is timed, so nothing of that is asked.
"""

from __future__ import annotations

from dataclasses import replace

from optkit.backends.build_options import Choice
from optkit.backends.kept import Kept
from optkit.backends.tensorrt import TensorRT
from optkit.backends.tensorrt_objects import Config, Library, LoadedEngine, OpenedContext
from optkit.devices import Target
from optkit.engines import BuildSpec
from optkit.errors import ToolchainMissing
from optkit.placement import PlacementRules
from optkit.precisions import Precision

_CAPABILITIES = {
    "7.5": "SM75", "8.0": "SM80", "8.6": "SM86", "8.9": "SM89", "12.0": "SM120", "12.1": "SM121",
}  # fmt: skip


class TensorRTRTX(TensorRT):
    """An engine for any GPU of a compute capability, built without one."""

    name = "tensorrt-rtx"
    traits = replace(TensorRT.traits, any_machine=True, distribution="tensorrt-rtx")
    title = "TensorRT-RTX"
    module = "tensorrt_rtx"
    distribution = "tensorrt-rtx"
    install = "pip install 'optkit[rtx]'"
    records_launches = False

    def refuses(self, target: Target, precision: Precision) -> str | None:
        """As TensorRT; and FP32, whose products it has none of for compute capability 7.5."""
        if precision.name == "fp32" and target.compute_capability == "7.5":
            return f"{self.title} has no FP32 matrix products for compute capability 7.5"
        return super().refuses(target, precision)

    def rules(self, target: Target, precision: Precision) -> PlacementRules:
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

    def _options(self, target: Target) -> dict[str, Choice]:
        """None: kernels are made for the device where the engine is loaded."""
        return {}

    def _context(
        self, trt: Library, engine: LoadedEngine, cuda_graph: bool, kept: Kept | None
    ) -> OpenedContext:
        """With the kernels that were compiled for this device before. Those of another driver or
        version the library turns away itself, and begins anew."""
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
        """Nothing: the device here may be another one, and the builder's log says it all."""
        return ""

    def _aim(self, trt: Library, config: Config, spec: BuildSpec) -> None:
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
