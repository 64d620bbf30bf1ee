"""Samples on disk (`spool`) and what user code read to make them (`reads`)."""
