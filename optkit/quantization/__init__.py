"""Quantization: assign, cast, scales, Q/DQ."""
