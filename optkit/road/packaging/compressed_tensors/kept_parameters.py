"""The parameters of a Hugging Face model as its checkpoint has them.

The graph has what the model multiplies by. A norm that adds a number to its weight (Gemma) gets the
weight back; a bias that is zero in the graph is zero in the checkpoint; one parameter with two
names (a tied last layer) is written once, unless quantization has made two of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from optkit.craft.quantization.qdq.codes import same
from optkit.craft.sources.hugging_face.network_layout import NetworkLayout
from optkit.facts.errors import UsageError
from optkit.road.packaging.decoders import Parameter


@dataclass(frozen=True)
class KeptParameters:
    """written  the parameters to write, by name
    tied     whether names that are one parameter still are; None: there are none
    """

    written: Mapping[str, Parameter]
    tied: bool | None


def kept_parameters(layout: NetworkLayout, found: Mapping[str, Parameter]) -> KeptParameters:
    """Of the parameters that were `found` in a graph. Raises UsageError for a bias that the network
    has no place for."""
    _check_biases(layout, found)
    known = {name: _without_offset(layout, parameter) for name, parameter in found.items()}
    for name, size in layout.biases.items():
        known.setdefault(name, Parameter(name, lambda size=size: np.zeros(size, np.float32)))  # type: ignore[misc]
    return _shared(layout, found, known)


def _shared(
    layout: NetworkLayout, found: Mapping[str, Parameter], known: dict[str, Parameter]
) -> KeptParameters:
    """What is written of parameters with several names: the first name, or all of them."""
    if not layout.shared:
        return KeptParameters(known, None)
    groups = {names: [name for name in names if name in found] for names in layout.shared}
    tied = all(
        same(found[present[0]].stored(), found[name].stored())
        for present in groups.values()
        for name in present[1:]
    )
    for names, present in groups.items():
        for name in names if present else ():
            source = known[name if name in present and not tied else present[0]]
            known[name] = replace(source, name=name)
        for name in names[1:] if tied else ():
            known.pop(name, None)
    return KeptParameters(known, tied)


def _check_biases(layout: NetworkLayout, found: Mapping[str, Parameter]) -> None:
    for name in found:
        if name.endswith(".bias") and name not in layout.biases and name not in layout.norms:
            raise UsageError(
                f"the graph has {name}, and {layout.network} has no parameter for it",
                hint="if it corrects the error of quantization, build with "
                "`quantization: {bias_correction: false}`",
            )


def _without_offset(layout: NetworkLayout, parameter: Parameter) -> Parameter:
    offset = layout.offsets.get(parameter.name)
    if offset is None:
        return parameter

    def read() -> np.ndarray:
        gain = parameter.read()
        assert isinstance(gain, np.ndarray)
        weight: np.ndarray = gain - np.float32(offset)
        return weight

    return replace(parameter, stored=read)
