"""Quantization: numbers first, structure second.

cast        FP32 graph → FP16 or BF16 carriers; islands: what stays FP32; reach: how far values go;
            simulation: BF16 as FP32 nodes
assign      which nodes, by the backend's rules; sites: which values they read; blocks
prepare     exact rewrites in front: smooth, equalize, awq chosen; rescale, folding, passing and
            labels move their factors
decide      ranges, scales, codes of weights and values (decisions): formats, scales, clipping, rtn,
            gptq (with descent), convolution, hqq, bias; tiles cut large weights
qdq         writes what was decided (writer; dynamic, nbits, embeddings: forms of their own)
streamed    the same for weights that do not fit in memory, piece by piece without data; layerwise:
            GPTQ and AWQ (protected) part by part; coded: products that read such codes
operands    what a Conv, MatMul or Gemm multiplies
"""
