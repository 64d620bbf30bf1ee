"""The names of the files that steps write."""

GRAPH = "model.onnx"
SIMULATION = "simulation.onnx"
STATISTICS = "statistics.safetensors"
FACTORS = "factors.safetensors"
SCORES = "scores.safetensors"
RAW_SCORES = ("per_sample", "replicates")  # the parts of a Score that this file contains
GROUPS = "groups"  # the number of the group of each row that is scored, if there are groups
SLICE = "slice/"  # and the name of a slice: its value, then its replicates
EACH = "each"  # the metric of each sample alone, in the file of scores
TIMES = "times.safetensors"
ASSETS = "assets"  # the folder of a source's tokenizer and processor files
