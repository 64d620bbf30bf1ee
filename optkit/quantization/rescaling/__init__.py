"""Exact rewrites in front of quantization: a factor per channel is moved where it costs less."""
