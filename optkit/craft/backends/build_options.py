"""The options of TensorRT for one device: a rule for each option, from the target's figures, with
its reason.

Boards of one compute capability are different devices. The rules depend on memory, cache,
bandwidth, multiprocessors and power. They are pure, so a specification is the same on any machine;
`apply` writes it into a builder configuration. No rule was tuned on a device: the rules follow the
library's documentation of each option, and `docs/reference/targets.md` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from optkit.craft.backends.shape_profile import Profile
from optkit.craft.backends.tensorrt_objects import Builder, Config, Library, Network
from optkit.facts.engines import SEARCH_MINUTES, BuildSpec
from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange
from optkit.ground.devices import Target

_MIB = 2**20
_TILE_BYTES = 16 * _MIB  # a smaller cache cannot hold a useful tile between two kernels
_STARVED = 250  # FP16 operations per byte of bandwidth: above this, kernels wait for memory
# the power of a PCIe slot (PCI Express CEM): a board with at most this has no other supply
_SLOT_WATTS = 75
_ONE_STREAM_SMS = 64  # multiprocessors that the kernels of one stream keep busy
_WIDE = 16  # a multiple of the optimum


class OptionValue(NamedTuple):
    """The value of an option, and its reason."""

    value: object
    why: str


class Limit(NamedTuple):
    """A size in bytes (None: the library's own limit), and its reason."""

    value: int | None
    why: str


def workspace(target: Target) -> Limit:
    """Bytes of scratch memory for kernels; None if the memory is not known."""
    if target.marketed_memory_bytes is None:
        return Limit(None, "the target's memory is not known: the library's own limit")
    if _one_memory(target):
        return Limit(target.marketed_memory_bytes // 4, "a quarter of a memory that the CPU shares")
    return Limit(
        target.marketed_memory_bytes // 2, "half of the memory: weights and activations need room"
    )


def one_profile(axes: Mapping[str, AxisRange]) -> str:
    """Why there is one profile, and when two artifacts are better."""
    why = "one profile: each further one would store the weights again"
    wide = [name for name, span in axes.items() if span.max > _WIDE * max(span.opt, 1)]
    if not wide:
        return why
    return (
        f"{why}; {' and '.join(wide)} may grow over {_WIDE} times the optimum that kernels are "
        "chosen at: where both ends matter, build an artifact for each"
    )


def options(target: Target, axes: Mapping[str, AxisRange]) -> dict[str, OptionValue]:
    """Options of both TensorRT and TensorRT-RTX."""
    return {
        "strongly_typed": OptionValue(
            True, "precision is in the graph; TensorRT 11 knows nothing else"
        ),
        "tf32": OptionValue(False, "fp32 means IEEE single precision"),
        "profiling_verbosity": OptionValue(
            "DETAILED", "the builder lists its fused layers; the engine is the same"
        ),
        "aux_streams": _streams(target),
        "cuda_graph": _cuda_graph(axes),
    }


def timed_options(target: Target) -> dict[str, OptionValue]:
    """Options of full TensorRT, which times kernels on the device and writes the fastest into the
    engine. TensorRT-RTX does neither: it accepts these options and compiles the same bytes, or
    reports that it lacks them. So it does not get them."""
    return {
        "optimization_level": OptionValue(
            3,
            "the library's default; public reports of level 5 are 30 minutes to over 10 hours (not "
            "verified here)",
        ),
        SEARCH_MINUTES: OptionValue(
            0,
            "one build at that level; minutes let the builder search on at level 5, and the "
            "first engine stays if they do not suffice",
        ),
        "timing_iterations": _iterations(target),
        **_tiling(target),
        "timing_cache": OptionValue(
            True,
            "timings are kept per device model, driver and version, so that the next build of this "
            "graph chooses the same kernels",
        ),
        "hardware_compatibility": OptionValue(
            "NONE", f"for {target.title} alone: an engine for more devices gives kernels up"
        ),
        "version_compatible": OptionValue(
            False, "a lean runtime inside the engine would be host code that has to be trusted"
        ),
        "refittable": OptionValue(
            False, "weights are known: the builder may fold and reorder them"
        ),
    }


def build_spec(
    backend: str,
    target: Target,
    precision: Precision,
    shapes: Profile,
    choices: Mapping[str, OptionValue],
    reasons: Mapping[str, str],
    workspace_bytes: int | None = None,
) -> BuildSpec:
    """The specification of a build with these options. `reasons`: those of other options."""
    return BuildSpec(
        backend,
        target.name,
        target.compute_capability,
        precision.name,
        shapes,
        workspace_bytes,
        {name: choice.value for name, choice in choices.items()},
        {**reasons, **{name: choice.why for name, choice in choices.items()}},
    )


def apply(trt: Library, config: Config, spec: BuildSpec, title: str) -> None:
    """Write the options of a specification into a builder configuration, and read each one back.
    Raises ToolchainMissing for an option that this library or version does not accept."""
    refused = {
        name: value for name, value in spec.options.items() if not _take(trt, config, name, value)
    }
    if spec.workspace_bytes is not None:
        pool = trt.MemoryPoolType.WORKSPACE
        config.set_memory_pool_limit(pool, spec.workspace_bytes)
        if config.get_memory_pool_limit(pool) != spec.workspace_bytes:
            refused["workspace_bytes"] = spec.workspace_bytes
    for name, value in refused.items():
        raise ToolchainMissing(
            f"{title} {getattr(trt, '__version__', '')} does not accept {name} = {value}",
            where=f"build option {name}",
            hint="another version of the library may accept it",
        )


def write_profile(
    builder: Builder,
    network: Network,
    config: Config,
    shapes: Profile,
    title: str,
    why: Callable[[], str],
) -> None:
    """One optimization profile with the inputs that have a dynamic axis. Raises InputRefused.
    `title`: the library; `why`: the reason in its log."""
    optimization = builder.create_optimization_profile()
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = [tensor.name for tensor in tensors if -1 in tensor.shape]
    for name in dynamic:
        if name not in shapes:
            raise InputRefused("a dynamic input has no shapes", where=f"input {name!r}")
        optimization.set_shape(name, *shapes[name])
    if dynamic and config.add_optimization_profile(optimization) < 0:
        raise InputRefused(f"shapes refused: {why()}", where=title)


def _take(trt: Library, config: Config, name: str, value: object) -> bool:
    """Write one option, and return whether it was accepted."""
    if name in _FLAGS:
        flag = getattr(trt.BuilderFlag, _FLAGS[name], None)
        if flag is None:
            return not value
        (config.set_flag if value else config.clear_flag)(flag)
        return bool(config.get_flag(flag) == value)
    if name in _ATTRIBUTES:
        if value == _BUILDERS_CHOICE:
            return True
        attribute, kind = _ATTRIBUTES[name]
        wanted = value if kind is None else getattr(getattr(trt, kind), str(value))
        setattr(config, attribute, wanted)
        return bool(getattr(config, attribute) == wanted)
    return name in _ELSEWHERE


_BUILDERS_CHOICE = "builder"
_FLAGS = {
    "tf32": "TF32",
    "timing_cache": "EDITABLE_TIMING_CACHE",
    "version_compatible": "VERSION_COMPATIBLE",
    "refittable": "REFIT",
}
# option → attribute of IBuilderConfig, and the enumeration that contains its value
_ATTRIBUTES: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "profiling_verbosity": ("profiling_verbosity", "ProfilingVerbosity"),
        "aux_streams": ("max_aux_streams", None),
        "optimization_level": ("builder_optimization_level", None),
        "timing_iterations": ("avg_timing_iterations", None),
        "tiling": ("tiling_optimization_level", "TilingOptimizationLevel"),
        "l2_limit_bytes": ("l2_limit_for_tiling", None),
        "hardware_compatibility": ("hardware_compatibility_level", "HardwareCompatibilityLevel"),
    }
)
# options for the network, the session and the search
_ELSEWHERE = frozenset({"strongly_typed", "cuda_graph", SEARCH_MINUTES})


def _streams(target: Target) -> OptionValue:
    """Streams in addition to the main one. More streams run branches at the same time, and keep
    more activations alive (documentation of IBuilderConfig.max_aux_streams)."""
    count = target.sm_count
    if count is None or count >= _ONE_STREAM_SMS:
        told = "an unknown number of" if count is None else count
        return OptionValue(
            _BUILDERS_CHOICE, f"{told} multiprocessors: branches may pay beside each other"
        )
    return OptionValue(0, f"one stream fills {count} multiprocessors; more would only hold memory")


def _cuda_graph(axes: Mapping[str, AxisRange]) -> OptionValue:
    """Whether launches are recorded and replayed as one, once per set of input sizes."""
    free = [name for name, span in axes.items() if span.min != span.max]
    if len(free) <= 1:
        return OptionValue(True, "launches of all kernels are replayed as one")
    return OptionValue(
        False, f"{', '.join(free)} change from run to run: each set of sizes is recorded anew"
    )


def _iterations(target: Target) -> OptionValue:
    """How often a kernel is timed before it is compared with others."""
    watts = target.tdp_w
    if watts is not None and watts <= _SLOT_WATTS:
        return OptionValue(
            8, f"{watts} W: clocks fall under load, so kernels are timed in the mean of 8"
        )
    told = "power is not known" if watts is None else f"{watts} W hold the clock"
    return OptionValue(1, f"{told} while kernels are timed")


def _tiling(target: Target) -> dict[str, OptionValue]:
    """Tiles of consecutive kernels in the L2 cache, for devices whose kernels wait for memory
    (documentation of TensorRT, "Tiling Optimization")."""
    cache, peak, bandwidth = target.l2_bytes, target.peak("fp16"), target.bandwidth
    if cache is None or cache < _TILE_BYTES:
        held = "a cache of unknown size" if cache is None else f"{cache // _MIB} MiB of cache"
        return {"tiling": OptionValue("NONE", f"{held} keeps no tile between two kernels")}
    sure = "" if target.facts["l2_mb"].verified else " (not verified)"
    limit = OptionValue(cache, f"the whole cache{sure}: the engine is alone on its device")
    if peak is None or bandwidth is None:
        told = "what it computes per byte is not known"
        return {"tiling": OptionValue("FAST", told), "l2_limit_bytes": limit}
    balance = peak / bandwidth
    starved = balance >= _STARVED
    why = f"{balance:.0f} FP16 operations per byte of bandwidth: " + (
        "memory is what kernels wait for, so tiles are searched for"
        if starved
        else "memory keeps up, so the cheap search does"
    )
    return {"tiling": OptionValue("MODERATE" if starved else "FAST", why), "l2_limit_bytes": limit}


def _one_memory(target: Target) -> bool:
    """Whether GPU and CPU share one memory."""
    kind = target.facts.get("memory_type")
    return kind is not None and "shared" in str(kind.value)
