"""A pool whose window covers the whole picture is a global pool.

With `ceil_mode`, a window may be larger than its input, and only the numbers inside the input
count. Some models pool globally in this way, with a window of thousands of pixels; TensorRT refuses
windows of this size. The global operators compute the same for every size of the window.
"""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.rule import Rule

_GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def check(node: ir.Node) -> ir.Node | None:
    source = node.inputs[0]
    if node.domain != "" or len(node.outputs) > 1 or source is None or source.shape is None:
        return None
    if not node.attributes.get_int("ceil_mode", 0) or _moves(node):
        return None
    window = _numbers(node, "kernel_shape")
    strides = _numbers(node, "strides") or [1] * len(window)
    sizes = list(source.shape)[2:]
    wider = False
    for size, width, stride in zip(sizes, window, strides, strict=True):
        # one window: the next one would begin behind the input
        if not isinstance(size, int) or not 0 <= width - size < stride:
            return None
        wider = wider or width > size
    return node if wider else None


def _moves(node: ir.Node) -> bool:
    """Whether padding or dilation changes which numbers the window covers."""
    padded = any(_numbers(node, "pads"))
    dilated = any(step != 1 for step in _numbers(node, "dilations"))
    return padded or dilated or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"


def rewrite(node: ir.Node) -> str:
    window = "×".join(map(str, _numbers(node, "kernel_shape")))
    node.op_type = _GLOBAL[node.op_type]
    node.attributes.clear()
    return f"its window of {window} covers the whole input"


def _numbers(node: ir.Node, attribute: str) -> list[int]:
    return list(node.attributes.get_ints(attribute) or ())


global_pool: Rule[ir.Node] = Rule("global_pool", frozenset(_GLOBAL), check, rewrite)
