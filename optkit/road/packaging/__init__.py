"""Deploy layouts: files that other programs expect.

genai      genai_config.json, for ONNX Runtime GenAI; every decoder's artifact has it
stamp      metadata in the ONNX files of an artifact
formats    the table of formats of `optkit package`, and how a package is written
variants   what is packaged: one artifact, or the artifacts of a fleet
signing    signatures of artifacts: OpenSSF Model Signing
bundle     the file of a signature
graph_files   the files of an artifact's graph
ort_settings  the providers and options with which ONNX Runtime runs a graph
scalars    the figures of a build as numbers by name
model_card    parts of the README.md that the Hugging Face hub shows
decoders   the parameters of a decoder, for formats that have a network of their own

Each format of `optkit package` is a module with a function `files`, see `formats`.
"""
