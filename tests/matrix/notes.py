"""Which precision is not worth shipping for a group of families: in a sentence or two (ADVICE), and
why (WORTH). Measurements name their machine."""

_CACHE = (
    "The figures of FP8 count a key-value cache in FP8, as servers of language models keep it. A "
    "graph that optkit builds keeps its cache in FP16, and then FP8 gains about as much as INT8."
)
WORTH = {
    "Text encoders": "Not INT4. An encoder reads each weight once for all tokens of a batch, so "
    "its products are limited by compute, and INT4 stores the weights only: they are unpacked and "
    "multiplied in FP16; what it gains at batch 1 is gone at batch 32. On a CPU too INT8 is the "
    "precision to build: *measured* on two cores with AVX2 and without VNNI, a model of the shape "
    "of BERT-base was 1.97 times as fast as in FP32.",
    "Embeddings and rerankers": "Not INT4: it costs accuracy and gains less than INT8. *Measured* "
    "on two cores with AVX2 and without VNNI, with the real weights of a sentence encoder: INT8 "
    "was 1.85 times as fast as FP32 at batch 1 and 1.94 times at batch 8, with a cosine of 0.998 "
    "and 92.4 % of the nearest neighbours; INT4 in blocks of 32 kept 86.4 %. An INT8 graph whose "
    "products have two terms kept 98.8 %, but was not faster than FP32.",
    "Decoders": "Not INT8 if INT4 passes the gate and few sequences are decoded at once: a step "
    "then reads all weights for a few tokens, so the number of their bytes is its time. Not INT4 "
    "for large batches or long prompts, where its unpacking counts, and not for small decoders on "
    "a CPU without VNNI: *measured* on two cores with AVX2, INT4 ran at 0.56 to 0.73 times the "
    "speed of FP32. On a GPU only attention, router and head of a mixture of experts are "
    "quantized: the experts' weights are looked up for each token. With random weights the "
    "scores of experts nearly tie, so that FP16 sends a few tokens to others (Qwen3-MoE: 5 of "
    "2,048, the rest of the logits has 55 dB): their SQNR here says nothing of a trained model. "
    + _CACHE,
    "Encoder-decoders": "Not INT8 or INT4 for a decoder as small as Whisper's base: at batch 1 "
    "half of its step is launches, which no precision shortens, and at batch 32 most of its bytes "
    "are the keys and values of 1,500 frames, which INT8 and INT4 leave in FP16. The decoder "
    "decides: it runs once per token, the encoder once per text. " + _CACHE,
    "Image classifiers and towers": "Not INT4: it has no convolutions, and a tower is limited by "
    "compute like an encoder of text: at batch 32 it gains nothing. On a CPU without VNNI not INT8 "
    "for networks of depthwise convolutions: *measured* on two cores with AVX2, EfficientNet with "
    "all 50 products in INT8 ran at 0.32 times the speed of FP32, where a network of the shape of "
    "ResNet-50 ran 2.26 times as fast. Since then depthwise convolutions stay in float.",
    "Detectors and segmenters": "Not INT4, for the same reasons as for classifiers; and for one as "
    "small as SegFormer-B0 neither INT8 nor FP8 before a measurement: its time is mostly traffic "
    "of activations and the copy of 150 masks to the host. The scores and boxes come from a few "
    "last layers, whose errors are not averaged: compare the metric of the task and not the SQNR. "
    "RT-DETR and D-FINE take the queries with the highest scores (TopK); with random weights the "
    "scores nearly tie, so that a rounding exchanges whole queries: their SQNR here says nothing "
    "of a trained model.",
    "Audio": "Not INT4: the encoder computes hundreds of frames at once and is limited by compute, "
    "so that it gains little at batch 1 and nothing at batch 32.",
    "Time series": "Not INT4: all patches of all channels are computed at once, so that reading "
    "the weights is a small part of the time, at batch 1 too.",
}
ADVICE = {
    "Text encoders": "INT8, also on a CPU without VNNI. Not INT4: it gains nothing at batch 32.",
    "Embeddings and rerankers": "INT8. Not INT4: it costs accuracy and gains less.",
    "Decoders": "INT4 if it passes the gate and few sequences are decoded at once; INT8 for large "
    "batches or long prompts. On a CPU without VNNI a small decoder is slower in INT4 than in FP32 "
    "(*measured*). Experts of a mixture are quantized on a CPU only.",
    "Encoder-decoders": "Neither INT8 nor INT4 for a decoder as small as Whisper's base.",
    "Image classifiers and towers": "INT8. Not INT4: it has no convolutions, and gains nothing at "
    "batch 32.",
    "Detectors and segmenters": "Not INT4. Compare the metric of the task and not the SQNR. For a "
    "model as small as SegFormer-B0, measure before INT8 or FP8.",
    "Audio": "INT8. Not INT4: it gains nothing at batch 32.",
    "Time series": "INT8 for large batches. Not INT4.",
}
