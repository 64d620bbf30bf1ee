"""Formats, scales, ranges: maths on arrays, with no graph in it."""
