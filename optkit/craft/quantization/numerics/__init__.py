"""Number formats, scales and ranges: arithmetic on arrays, without a graph."""
