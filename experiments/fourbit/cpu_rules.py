"""Builds for a CPU by other placement rules than those of its kernels, to see what a format keeps
that no kernel reads. Their graphs run as simulations only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from optkit.backends.onnxruntime import OnnxRuntime
from optkit.devices import Target
from optkit.placement import PlacementRules
from optkit.precisions import Precision


@contextmanager
def changed_rules(name: str, change: Callable[[PlacementRules], PlacementRules]) -> Iterator[None]:
    """Inside, `change` applies to the rules of this precision, and to no others."""
    plain = OnnxRuntime.rules

    def rules(backend: OnnxRuntime, target: Target, precision: Precision) -> PlacementRules:
        given = plain(backend, target, precision)
        return change(given) if precision.name == name else given

    with mock.patch.object(OnnxRuntime, "rules", rules):
        yield
