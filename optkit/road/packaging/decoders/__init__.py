"""A model's weights with the names of its Hugging Face model, for formats whose readers have a
network of their own and take only its numbers (llama.cpp, MLX, vLLM).

architecture  the sizes in config.json, and which families these formats can hold
activations   how the graph quantizes what a product reads
caveats       what is not as in the artifact, whatever the format
parameters    the parameters in the artifact's graph; what has no place in the architecture is
              refused

An artifact's graph may be fused and quantized, but the name of each node begins with the module of
the PyTorch model. So a parameter is found by the module of the node that reads it.
"""

from __future__ import annotations

from optkit.road.packaging.decoders.activations import QuantizedInput, check_others, quantized_input
from optkit.road.packaging.decoders.architecture import Architecture, RotaryParameters
from optkit.road.packaging.decoders.caveats import caveats
from optkit.road.packaging.decoders.parameters import Network, Parameter, parameters

__all__ = [
    "Architecture",
    "Network",
    "Parameter",
    "QuantizedInput",
    "RotaryParameters",
    "caveats",
    "check_others",
    "parameters",
    "quantized_input",
]
