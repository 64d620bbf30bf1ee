"""The work of the steps, one module for each. Only a worker imports them, so their heavy imports
(onnx_ir, ONNX Runtime, torch) are at the top of the modules."""
