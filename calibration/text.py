"""Texts as calibration samples: .txt, .jsonl, .csv, .tsv, .parquet, by the model's tokenizer.

calibration: {source: text, args: {path: corpus.jsonl, field: text, length: 128, pack: true}}
"""

from __future__ import annotations

from optkit.data.text import samples

__all__ = ["samples"]
