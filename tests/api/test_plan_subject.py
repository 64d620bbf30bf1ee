"""The model of a plan and its costs, without the predicted figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optkit
from optkit.craft.prediction.planned_model import OneCallModel
from optkit.ground import graph
from optkit.road import jobs, pipeline
from optkit.verbs.api.plan_subject import _tokens, exported
from tests.networks import NETWORKS, network


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((None, None, None), (1024, 256)),
        ((None, None, 448), (359, 89)),
        ((None, 60, 64), (4, 60)),
        ((60, None, 64), (60, 4)),
        ((5000, None, None), (5000, 256)),
    ],
)
def test_tokens_that_nobody_asks_for(
    asked: tuple[int | None, int | None, int | None], expected: tuple[int, int]
) -> None:
    assert _tokens(*asked) == expected


@given(st.integers(2, 10_000))
def test_defaults_fit_into_the_positions(positions: int) -> None:
    prompt, new = _tokens(None, None, positions)
    assert prompt >= 1 and new >= 1 and prompt + new <= positions


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_a_plan_quantizes_the_products_that_a_build_quantizes(name: str, tmp_path: Path) -> None:
    """The stem has 3 channels, a convolution is depthwise, the others are none of both."""
    model = tmp_path / "net.onnx"
    graph.save(network(NETWORKS["chain"]), model)
    runner = optkit.Workspace(tmp_path / "store", listener=None).runner()
    samples = [{"x": np.random.default_rng(0).normal(size=(8, 3, 10, 10)).astype(np.float32)}]
    job = jobs.job_of(
        model, None, jobs.pair("cpu", "fp32"), recipe=None, calibration=samples, name=None,
        runner=runner,
    )  # fmt: skip
    planned = exported(job, runner, None, None).model
    device, number = jobs.pair("l4", name)
    job = replace(job, target=device, precision=number, deferred=True)
    build = pipeline.run(job, runner, pipeline.QUANTIZE)
    assert isinstance(planned, OneCallModel)
    assert build.planned == planned.quantized("l4", name)
    kinds = {"int8": ["int8", "fp16", "int8", "int8", "int8"],
             "fp8": ["fp16", "fp16", "fp8", "fp8", "fp8"], "int4": ["fp16"] * 5}  # fmt: skip
    works = planned.works(1, device, number)
    assert [work.dtype for work in works if work.operations] == kinds[name]
