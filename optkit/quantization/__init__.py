"""Quantization: numbers first, structure second.

placement       which nodes, by the backend's rules, and where Q/DQ pairs go; what a Conv, MatMul or
                Gemm multiplies
rescaling       exact rewrites in front: SmoothQuant, equalization, AWQ
ranges          which range of a value its codes span
numerics        formats, scales, clipping, the qparams themselves; tiles cut large weights
rounding        codes of weights: round to nearest, GPTQ, QuantEase, HQQ; biases corrected
choose_qparams  scales and codes of all values and weights of a graph
qdq             writes them (writer; coding, dynamic, nbits, embeddings: forms of their own)
out_of_core     the same for weights that do not fit in memory: streamed piece by piece, or GPTQ and
                AWQ layer by layer
"""
