"""Deploy layouts: what other programs want to find in an artifact's folder.

genai    genai_config.json, for ONNX Runtime GenAI
"""
