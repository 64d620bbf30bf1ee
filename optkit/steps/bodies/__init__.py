"""The work of the steps, one module for each: imported in a worker alone, so that what is heavy
(onnx_ir, ONNX Runtime, torch) stands at the top of a module."""
