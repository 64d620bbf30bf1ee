"""Deploy layouts: files that other programs expect in the folder of an artifact.

genai    genai_config.json, for ONNX Runtime GenAI
"""
