"""INT8: which nodes (assign), what numbers (scales), where (sites) and how the graph says it (qdq).

cast turns an FP32 graph into FP16; qdq writes the same codes and scales into either.
"""
