"""Converts a model in its original form to one ONNX graph of opset ≥ 21.

    model_factory   file.py:factory or package.module:factory, with safetensors weights
    torch_module    an nn.Module
    program         a torch.export archive
    hugging_face    a Hugging Face folder
    onnx_file       a graph, converted if its opset is older

Every graph that torch exports is compared with torch at two other shapes. Nothing is optimised
here: the graph computes what the model computes, and `optkit.craft.fusion` makes it small and fast.
"""
