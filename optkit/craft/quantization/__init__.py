"""Quantization: first the numbers, then the structure of the graph.

placement       which nodes are quantized, by the rules of the backend, and where Q/DQ pairs go
rescaling       exact rewrites before quantization: SmoothQuant, equalization, AWQ
ranges          the range of a value that its codes cover
numerics        number formats, scales, clipping, the qparams; tiles of large weights
rounding        codes of weights: round to nearest, GPTQ, QuantEase, HQQ; bias correction
choose_qparams  scales and codes of all values and weights of a graph
covering        ranges that hold at all declared sizes of the axes
noisy_nodes     which products need finer activations, by their noise at the outputs of the model
noisy_cells     the noise of recurrent cells there, if they have codes
qdq             writes them into the graph (writer; other forms: coding, dynamic, nbits, embeddings,
                coded_experts, coded_recurrences), and reads them from it (reader)
kv_cache        the key-value cache of a decoder as codes
out_of_core     the same for weights that do not fit in memory: round to nearest in pieces, or GPTQ
                and AWQ layer by layer
"""
