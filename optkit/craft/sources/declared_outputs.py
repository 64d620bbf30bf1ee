"""Outputs whose declared shape is not what the graph computes.

ONNX Runtime runs such a file with a warning, so packages ship some: an OCR model (ddddocr) declares
a matrix and computes three axes. The declaration is dropped, because no strict tool loads the file.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def forget(model: ir.Model) -> dict[str, ir.Shape]:
    """Forget, in place, the declared shapes of the outputs. Returns them by name."""
    declared = {str(v.name): v.shape for v in model.graph.outputs if v.shape is not None}
    for output in model.graph.outputs:
        output.shape = None
    return declared


def restore(model: ir.Model, declared: Mapping[str, ir.Shape]) -> tuple[str, ...]:
    """Give the outputs of an inferred graph their declared shapes again, in place, but not those
    that it contradicts. Returns a note for each of these."""
    notes = []
    for output in model.graph.outputs:
        shape, found = declared.get(str(output.name)), output.shape
        if shape is not None and found is not None and _differ(shape, found):
            notes.append(
                f"output {output.name!r} is declared as {_told(shape)}, and the graph computes "
                f"{_told(found)}: the declaration is dropped"
            )
        elif shape is not None:
            output.shape = shape
    return tuple(notes)


def _differ(one: ir.Shape, other: ir.Shape) -> bool:
    sizes = zip(one.dims, other.dims, strict=False)
    known = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int)]
    return len(one) != len(other) or any(a != b for a, b in known)


def _told(shape: ir.Shape) -> str:
    return f"[{', '.join(str(size) if isinstance(size, int) else '?' for size in shape.dims)}]"
