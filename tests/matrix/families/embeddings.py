"""Models of embeddings, whose pooling is the reader's, and rerankers."""

from __future__ import annotations

import transformers as hf

from tests.matrix.families.sizes import CAUSAL, CLIP_VISION, IMAGES, MASKED, SMALL, TOKENS, Family

FAMILIES: dict[str, Family] = {
    "minilm": Family("MiniLM (BERT without a head)", lambda: hf.BertModel(hf.BertConfig(**MASKED))),
    "mpnet": Family("MPNet", lambda: hf.MPNetModel(
        hf.MPNetConfig(**{**MASKED, "max_position_embeddings": 66}))),
    "nomic-bert": Family("NomicBERT", lambda: hf.NomicBertModel(hf.NomicBertConfig(**MASKED))),
    "qwen3-embedding": Family(
        "Qwen3 embeddings", lambda: hf.Qwen3Model(hf.Qwen3Config(head_dim=8, **CAUSAL))
    ),
    "bge-reranker": Family(
        "XLM-RoBERTa reranker",
        lambda: hf.XLMRobertaForSequenceClassification(
            hf.XLMRobertaConfig(num_labels=1, type_vocab_size=1,
                                **{**MASKED, "max_position_embeddings": 66})
        ),
    ),
    "modernbert-reranker": Family(
        "ModernBERT reranker",
        lambda: hf.ModernBertForSequenceClassification(
            hf.ModernBertConfig(num_labels=1, classifier_pooling="mean", local_attention=8,
                                global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                                **{**MASKED, **TOKENS})
        ),
    ),
    "clip": Family(
        "CLIP, both towers",
        lambda: hf.CLIPModel(
            hf.CLIPConfig(text_config={**SMALL, **TOKENS, "max_position_embeddings": 32},
                          vision_config=CLIP_VISION, projection_dim=16)
        ),
    ),
    "siglip": Family(
        "SigLIP, both towers",
        lambda: hf.SiglipModel(
            hf.SiglipConfig(text_config={**SMALL, **TOKENS, "max_position_embeddings": 32},
                            vision_config={**IMAGES, **SMALL})
        ),
        reads_padding=True,
    ),
}  # fmt: skip
