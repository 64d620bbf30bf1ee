"""A decided quantization, written into the graph."""
