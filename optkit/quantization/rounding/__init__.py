"""Weights to codes: round to nearest, GPTQ, QuantEase, HQQ; and bias correction."""
