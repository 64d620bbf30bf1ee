"""Compilers and runtimes, one module each, behind the Protocols of `runtime`.

onnxruntime   CPU: runs graphs, and says which nodes became integer kernels
tensorrt      TensorRT and TensorRT-RTX: compiles engines, without a GPU where the library allows it
layer_list    reads the fused layers that TensorRT's builder logs and its inspector tells
description   which of the two tells of an engine; unknown where none is understood
tensorrt_refusals    why TensorRT refuses a graph, as typed errors
tensorrt_libraries   the TensorRT that ONNX Runtime's provider needs
build_log     what else it logs: progress, and why it refused
kernel_list   reads what ONNX Runtime made of a graph, as fused layers
landing       planned against real, for both
profile       input shapes at the ends of every dynamic axis
"""
