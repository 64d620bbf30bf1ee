"""Encoders of text."""

from __future__ import annotations

import transformers as hf

from tests.matrix.families.sizes import CAUSAL, MASKED, TOKENS, VOCAB, Family

_ROBERTA = {**MASKED, "max_position_embeddings": 66, "type_vocab_size": 1}

FAMILIES: dict[str, Family] = {
    "bert": Family(
        "BERT", lambda: hf.BertForSequenceClassification(hf.BertConfig(**MASKED))
    ),
    "roberta": Family(
        "RoBERTa", lambda: hf.RobertaForTokenClassification(hf.RobertaConfig(**_ROBERTA))
    ),
    "distilbert": Family(
        "DistilBERT",
        lambda: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(vocab_size=VOCAB, max_position_embeddings=64, dim=32,
                                hidden_dim=64, n_layers=2, n_heads=4)
        ),
    ),
    "xlnet": Family(
        "XLNet",
        lambda: hf.XLNetForSequenceClassification(
            hf.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, **TOKENS)
        ),
        pads_left=True,
    ),
    "deberta-v2": Family(
        "DeBERTa-v2",
        lambda: hf.DebertaV2ForSequenceClassification(
            hf.DebertaV2Config(relative_attention=True, position_buckets=16,
                               pos_att_type=["p2c", "c2p"], **MASKED)
        ),
    ),
    "modernbert": Family(
        "ModernBERT",
        lambda: hf.ModernBertForSequenceClassification(
            hf.ModernBertConfig(local_attention=8, global_attn_every_n_layers=2, cls_token_id=1,
                                sep_token_id=2, **{**MASKED, **TOKENS})
        ),
    ),
    "albert": Family(
        "ALBERT",
        lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(embedding_size=16, **MASKED)),
    ),
    "electra": Family(
        "ELECTRA",
        lambda: hf.ElectraForSequenceClassification(
            hf.ElectraConfig(embedding_size=16, **MASKED)
        ),
    ),
    "xlm-roberta": Family(
        "XLM-RoBERTa, question answering",
        lambda: hf.XLMRobertaForQuestionAnswering(hf.XLMRobertaConfig(**_ROBERTA)),
    ),
    "longformer": Family(
        "Longformer",
        lambda: hf.LongformerForSequenceClassification(
            hf.LongformerConfig(attention_window=8, pad_token_id=1, **_ROBERTA)
        ),
    ),
    "bart-classifier": Family(
        "BART with a classification head",
        lambda: hf.BartForSequenceClassification(
            hf.BartConfig(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2,
                          encoder_attention_heads=4, decoder_attention_heads=4,
                          encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
                          pad_token_id=0, bos_token_id=1, eos_token_id=2)
        ),
    ),
    "llama-classifier": Family(
        "Llama with a classification head",
        lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**CAUSAL)),
    ),
}  # fmt: skip
