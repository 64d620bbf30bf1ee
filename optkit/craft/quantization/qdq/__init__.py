"""Writes qparams into the graph."""
