"""Recordings as calibration samples: a folder of WAV files, through the model's feature extractor.

calibration: {source: audio, args: {path: recordings, target: transcription}}
"""

from __future__ import annotations

from optkit.data.audio import samples

__all__ = ["samples"]
