"""Graphs that another tool has quantized: who wrote them, what they ask for, and the rewrites that
TensorRT needs.

producer            which tool wrote the graph
qdq_parameters      the parameters of a QuantizeLinear or DequantizeLinear
operators           integer operators as Q/DQ pairs
requested_products  which products are to run in which dtypes
repairs             the ordered rewrites to signed, symmetric Q/DQ pairs with scalar scales
float_graph         the graph without quantization
optimized           operators that only an optimizer of ONNX Runtime writes
range_file          ranges of activations: calibration caches of TensorRT, encodings of AIMET
"""

from optkit.craft.foreign.float_graph import never_negative, remove_quantization
from optkit.craft.foreign.operators import integer_operators
from optkit.craft.foreign.optimized import optimized
from optkit.craft.foreign.producer import producer_of
from optkit.craft.foreign.range_file import GivenRanges, read_ranges
from optkit.craft.foreign.repairs import FORMS, REPAIRS, floats_for_float_codes, normal_form, repair
from optkit.craft.foreign.requested_products import (
    assignment,
    is_quantized,
    products,
    ranges,
    requested_products,
)

__all__ = [
    "FORMS",
    "REPAIRS",
    "GivenRanges",
    "assignment",
    "floats_for_float_codes",
    "integer_operators",
    "is_quantized",
    "never_negative",
    "normal_form",
    "optimized",
    "producer_of",
    "products",
    "ranges",
    "read_ranges",
    "remove_quantization",
    "repair",
    "requested_products",
]
