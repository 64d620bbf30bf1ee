"""Jobs that cannot succeed are refused before any work."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.backends import shape_profile
from optkit.facts.errors import Impossible, InputRefused, ToolchainMissing, UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo, size_of
from optkit.ground.data import spool_writer
from optkit.ground.devices import cpu, target
from optkit.ground.recipe import Recipe
from optkit.road.pipeline import Foreign, Job, cache_quantization, check, check_timed, refusals
from optkit.road.steps.collect import Samples


def job(precision: str, nodes: dict[str, str], **others: Any) -> Job:
    recipe = Recipe.from_dict({"name": "net", "quantization": {"nodes": nodes}, **others})
    return Job(recipe, target("a100-sxm-80gb"), PRECISIONS[precision])


def test_a_precision_that_only_some_nodes_get() -> None:
    with pytest.raises(Impossible, match=r"(?i)fp8"):
        check(job("int4", {"*head*": "fp8"}))
    check(job("int4", {"*head*": "fp32"}))
    check(job("fp16", {"*head*": "fp8"}))  # the baseline itself: nothing is quantized


def test_pictures_for_the_report_need_pillow_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = replace(job("fp16", {}), embed_pictures=True)
    check(asked)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    check(job("fp16", {}))
    with pytest.raises(ToolchainMissing, match=r"PIL|pillow|data"):
        check(asked)


def test_samples_that_only_some_nodes_need() -> None:
    check(job("int4", {}))
    with pytest.raises(InputRefused, match="int8 needs calibration samples"):
        check(job("int4", {"*head*": "int8"}))


@pytest.mark.parametrize(
    ("name", "precision", "weights", "said", "remedy"),
    [
        ("cpu", "int8", "auto", "int8 needs", "or build fp32"),
        ("l4", "int8", "gptq", "int8 needs", "or build fp16"),
        ("cpu", "int2", "awq", r"quantization\.weights awq needs", "quantization.weights=auto"),
        ("l4", "int4", "gptaq", r"quantization\.weights gptaq needs", "quantization.weights=auto"),
    ],
)
def test_what_needs_samples_and_what_helps_without(
    name: str, precision: str, weights: str, said: str, remedy: str
) -> None:
    recipe = Recipe.from_dict({"name": "net", "quantization": {"weights": weights}})
    with pytest.raises(InputRefused, match=said) as caught:
        check(Job(recipe, target(name), PRECISIONS[precision]))
    assert remedy in str(caught.value.hint)


def test_a_cache_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs ONNX Runtime on a CPU, a version that computes with it, and calibration samples."""
    asked = {"quantization": {"kv_cache": "int8"}}
    source = {"calibration": {"source": "digits"}}
    recipe = Recipe.from_dict({"name": "net", **asked, **source})
    check(Job(recipe, target("cpu"), PRECISIONS["int4"]))
    with pytest.raises(Impossible, match=r"reads the key-value cache .* as floats") as caught:
        check(Job(recipe, target("l4"), PRECISIONS["int4"]))
    assert "build for cpu" in str(caught.value.hint)
    check(Job(recipe, target("l4"), PRECISIONS["fp16"]))  # floats keep their cache
    in_fp8 = {"quantization": {"kv_cache": "fp8"}}  # of servers: the graph has no codes
    check(
        Job(Recipe.from_dict({"name": "net", **in_fp8, **source}), target("l4"), PRECISIONS["int8"])
    )
    with pytest.raises(InputRefused, match="calibration samples"):
        check(Job(Recipe.from_dict({"name": "net", **in_fp8}), target("l4"), PRECISIONS["int8"]))
    without = Recipe.from_dict({"name": "net", **asked})
    with pytest.raises(InputRefused, match="calibration samples"):
        check(Job(without, target("cpu"), PRECISIONS["int4"]))
    monkeypatch.setattr(cache_quantization, "installed", lambda name: "1.27.1")
    with pytest.raises(ToolchainMissing, match=r"1\.27\.1"):
        check(Job(recipe, target("cpu"), PRECISIONS["int4"]))
    check(Job(recipe, target("cpu"), PRECISIONS["fp32"]))


def test_axes_without_a_range_have_the_sizes_of_the_samples(tmp_path: Path) -> None:
    """Free height and width, the batch under a name of the exporter's own."""
    shape = ("p2o.DynamicDimension.0", 3, "height", "x.3")
    inputs = (TensorInfo("x", "float32", shape),)
    sizes = [(8, 20), (16, 20), (8, 12)]
    feeds = [{"x": np.zeros((1, 3, *size), np.float32)} for size in sizes]
    spool_writer.write(
        feeds, tmp_path, inputs, limit_samples=None, memory_bytes=1 << 20,
        progress=lambda what, fraction: None,
    )  # fmt: skip
    samples = Samples.of(Foreign(tmp_path, files={"index": ""}))
    made = replace(check(job("fp16", {})), inputs=inputs)
    made.job = replace(made.job, calibration=samples)
    told: list[str] = []
    refusals.bound(made, SimpleNamespace(note=told.append))  # type: ignore[arg-type]
    sizes_told = "(smallest, most common, largest): height 8, 8, 16; x.3 12, 20, 20"
    others = ". --min-shapes, --opt-shapes and --max-shapes set others"
    batch = (
        "axis 0 (p2o.DynamicDimension.0) is the batch: smallest, tuned and largest size 1, 8, 32"
    )
    assert told == [f"axes sized from the samples {sizes_told}{others}", batch]
    assert made.job.recipe.axis_ranges() == {
        "batch": AxisRange(1, 8, 32),
        "p2o.DynamicDimension.0": AxisRange(1, 8, 32),
        "height": AxisRange(8, 8, 16),
        "x.3": AxisRange(12, 20, 20),
    }


ODD = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
).filter(lambda name: " + " not in name and not name.isdecimal())


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_profile_from_samples_contains_every_sample(data: st.DataObject) -> None:
    """Any number of inputs with axes of any names, shared or not, in samples of any sizes."""
    axes = data.draw(st.lists(ODD, min_size=1, max_size=4, unique=True), label="axes")
    shapes = st.lists(st.sampled_from(axes[1:] or [3]) | st.integers(1, 3), max_size=3)
    inputs = tuple(
        TensorInfo(f"x{index}", "float32", (axes[0], *data.draw(shapes, label="shape")))
        for index in range(data.draw(st.integers(1, 3), label="inputs"))
    )
    feeds = []
    for _ in range(data.draw(st.integers(1, 5), label="feeds")):
        sizes = {axis: data.draw(st.integers(1, 40), label=axis) for axis in axes}
        sizes[axes[0]] = 1
        feeds.append({i.name: np.zeros([size_of(d, sizes) for d in i.shape], np.float32)
                      for i in inputs})  # fmt: skip
    made = replace(check(job("fp16", {})), inputs=inputs)
    with tempfile.TemporaryDirectory() as folder:
        spool_writer.write(
            feeds, Path(folder), inputs, limit_samples=None, memory_bytes=1 << 20,
            progress=lambda what, fraction: None,
        )  # fmt: skip
        samples = Samples.of(Foreign(Path(folder), files={"index": ""}))
        made.job = replace(made.job, calibration=samples)
        refusals.bound(made, SimpleNamespace(note=lambda text: None))  # type: ignore[arg-type]
    ranges = made.job.recipe.axis_ranges()
    for name, (least, opt, most) in shape_profile.profile(inputs, ranges).items():
        for feed in feeds:
            seen = zip(least, feed[name].shape, most, strict=True)
            assert all(low <= size <= high for low, size, high in seen)
        assert all(low <= size <= high for low, size, high in zip(least, opt, most, strict=True))
        for axis, size in enumerate(opt[1:], 1):  # a size that occurs
            assert size in {feed[name].shape[axis] for feed in feeds}


def test_samples_for_a_batch_that_is_not_axis_0_are_refused(tmp_path: Path) -> None:
    """A state [layers, batch, width]: samples are joined along axis 0."""
    inputs = (
        TensorInfo("x", "float32", ("batch", "t")),
        TensorInfo("h", "float32", (2, "batch", 8)),
    )
    made = replace(check(job("fp16", {}, axes={"t": 4})), inputs=inputs)
    refusals.bound(made, Any)  # type: ignore[arg-type]  # without samples nothing is joined
    samples = Samples.of(Foreign(tmp_path, files={"index": ""}))
    made.job = replace(made.job, calibration=samples)
    with pytest.raises(InputRefused, match="counts the samples, but it is axis 1") as caught:
        refusals.bound(made, Any)  # type: ignore[arg-type]
    assert caught.value.where == "input 'h'"
    assert "h: {dtype: float32, shape: [2, 1, 8]}" in str(caught.value.hint)


def test_axes_that_neither_recipe_nor_samples_give_are_asked_for() -> None:
    made = replace(check(job("fp16", {})), inputs=(TensorInfo("x", "float32", (1, "width")),))
    with pytest.raises(UsageError, match="'width' are not known") as caught:
        refusals.bound(made, Any)  # type: ignore[arg-type]
    assert "--calibration" in str(caught.value.hint)


@pytest.mark.parametrize("here", ["cpu-avx2", "cpu-avx512-vnni", None])
def test_the_baseline_on_any_cpu_is_fp32(monkeypatch: pytest.MonkeyPatch, here: str | None) -> None:
    """A kind of CPU is compiled for and measured where this machine is of it; else that waits, as
    its rates are of one core and one cycle."""
    machine = replace(cpu(), machine="x86_64", kind=here, clock_mhz=2500.0)
    monkeypatch.setattr("optkit.ground.devices.machine.cpu", lambda: machine)
    recipe = Recipe.from_dict({"name": "net"})
    for name in ("cpu", "cpu-avx2", "cpu-avx512-vnni"):
        asked = Job(recipe, target(name), PRECISIONS["fp32"])
        made, own = check(asked), name in ("cpu", here)
        assert (made.baseline_precision.name, made.is_baseline) == ("fp32", True)
        assert (made.backend, made.measured) == (("onnxruntime", True) if own else (None, False))
        assert made.pending == (() if own else ("onnxruntime",))
        if own:
            check_timed(asked)
        else:
            assert not made.predictable
            with pytest.raises(ToolchainMissing, match="only on a machine of that kind") as caught:
                check_timed(asked)
            assert name in str(caught.value.hint)
    assert check(job("fp16", {})).baseline_precision.name == "fp16"  # of a GPU
    check_timed(job("fp16", {}))  # predicted
