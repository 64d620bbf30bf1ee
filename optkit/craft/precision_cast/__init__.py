"""The cast of an FP32 graph to FP16 or BF16: which nodes run in half precision, and which stay in
FP32."""
