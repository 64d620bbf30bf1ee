"""Compilers and runtimes, one module each, behind the Protocols of `runtimes`.

onnxruntime   CPU: runs graphs, and says which nodes became integer kernels
ort_providers ONNX Runtime on other devices: CUDA, TensorRT, CoreML
tensorrt      TensorRT and TensorRT-RTX: compiles engines, without a GPU where the library allows it
build_options options of an engine for a device, each with its reason
layer_list    reads the fused layers from the log of TensorRT's builder and from its inspector
description   chooses between these two lists; unknown if neither can be read
tensorrt_refusals    why TensorRT refuses a graph, as typed errors
tensorrt_libraries   the TensorRT that ONNX Runtime's provider needs
build_log     other messages of the builder: progress, and the reason of a refusal
kernel_list   reads the graph that ONNX Runtime optimized, as fused layers
landing       compares planned precisions with those of the fused layers, for all backends
shape_profile input shapes at the ends of every dynamic axis
"""
