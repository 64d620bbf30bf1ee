"""The rules that an experiment changes hold inside it, and for its precision alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optkit.backends.onnxruntime import OnnxRuntime
from optkit.devices import target
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS
from tests.scripts import script

RULES = script("experiments/fourbit/cpu_rules.py")


def rules(name: str) -> PlacementRules:
    return OnnxRuntime().rules(target("cpu"), PRECISIONS[name])


def test_rules_are_changed_for_one_precision_and_put_back() -> None:
    before = {name: rules(name) for name in ("int4", "int8-weight-only", "int8")}
    with (
        pytest.raises(RuntimeError, match="inside"),
        RULES.changed_rules("int4", lambda plain: replace(plain, nbits_accuracy=None)),
    ):
        assert rules("int4") == replace(before["int4"], nbits_accuracy=None) != before["int4"]
        assert rules("int8-weight-only") == before["int8-weight-only"]
        assert rules("int8") == before["int8"]
        raise RuntimeError("inside")
    assert {name: rules(name) for name in before} == before
