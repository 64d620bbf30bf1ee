"""A model's weights with the names of its Hugging Face model, for formats whose readers have a
network of their own and take only its numbers (llama.cpp, MLX, vLLM).

architecture      the sizes in config.json, and which families llama.cpp and MLX can hold
parameters        those in the graph; what has no place in the network is refused
quantized_inputs  how the graph quantizes what a product reads
caveats           what is not as in the artifact, for programs that quantize no activations

An artifact's graph may be fused and quantized, but the name of each node begins with the module of
the PyTorch model. So a parameter is found by the module of the node that reads it.
"""

from __future__ import annotations

from optkit.road.packaging.decoders.architecture import Architecture, RotaryParameters
from optkit.road.packaging.decoders.caveats import caveats
from optkit.road.packaging.decoders.parameters import ExpectedParameters, Parameter, parameters
from optkit.road.packaging.decoders.quantized_inputs import (
    QuantizedInput,
    check_others,
    quantized_input,
)

__all__ = [
    "Architecture",
    "ExpectedParameters",
    "Parameter",
    "QuantizedInput",
    "RotaryParameters",
    "caveats",
    "check_others",
    "parameters",
    "quantized_input",
]
