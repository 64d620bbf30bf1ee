"""Quantization of models that do not fit in memory, piece by piece."""
