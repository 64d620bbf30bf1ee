"""What cannot end well is refused before work, whichever node of the recipe asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from optkit.errors import Impossible, InputRefused
from optkit.pipeline import Job, check
from optkit.recipe import Recipe
from optkit.target import target


def job(precision: str, nodes: dict[str, str], **others: Any) -> Job:
    recipe = Recipe.from_dict({"name": "net", "quantization": {"nodes": nodes}, **others})
    return Job(recipe, target("a100-sxm-80gb"), precision)


def test_a_precision_that_only_some_nodes_get() -> None:
    with pytest.raises(Impossible, match=r"(?i)fp8"):
        check(job("int4", {"*head*": "fp8"}))
    check(job("int4", {"*head*": "fp32"}))
    check(job("fp16", {"*head*": "fp8"}))  # the baseline itself: nothing is quantized


def test_samples_that_only_some_nodes_need() -> None:
    check(job("int4", {}))
    with pytest.raises(InputRefused, match="int8 needs calibration samples"):
        check(job("int4", {"*head*": "int8"}))
