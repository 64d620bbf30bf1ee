"""The small networks and the workshop of the quantization tests."""

from tests.quantization.conftest import _network, nets, workshop

__all__ = ["_network", "nets", "workshop"]
