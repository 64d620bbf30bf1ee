"""The names of files that steps leave."""

GRAPH = "model.onnx"
SIMULATION = "simulation.onnx"
STATISTICS = "statistics.safetensors"
SCORES = "scores.safetensors"
RAW_SCORES = ("per_sample", "replicates")  # what of a Score is in that file
TIMES = "times.safetensors"
ASSETS = "assets"  # the folder of a source's tokenizer and processor files
