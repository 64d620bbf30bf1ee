"""Rules for the standard form: plain ONNX operators, the same for every backend."""
