"""FP32 graph → FP16 or BF16 carriers: what is in half precision, and what stays FP32."""
