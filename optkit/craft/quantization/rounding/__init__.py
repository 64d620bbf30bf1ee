"""Codes of weights: round to nearest, GPTQ, QuantEase, HQQ; and bias correction."""
