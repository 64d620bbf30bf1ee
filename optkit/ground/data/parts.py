"""Samples of an encoder-decoder: for the whole model, and for each of its two graphs.

whole      the encoder's inputs (input_ids, attention_mask or input_features),
           decoder_input_ids [batch, sequence]
encoder    the same without decoder_input_ids
decoder    input_ids: decoder_input_ids
           encoder_attention_mask: attention_mask
           past_key_values.{i}.encoder.key|value: present.{i}.encoder.key|value, outputs of the
           encoder
"""

from __future__ import annotations

from collections.abc import Mapping

from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.data.sequences import ENCODER_MASK, IDS, MASK

DECODER_IDS = "decoder_input_ids"

Infos = tuple[TensorInfo, ...]


def whole(encoder: Infos, ids: TensorInfo) -> Infos:
    """The inputs of the whole model. `ids`: the decoder's token ids under any name."""
    return *encoder, TensorInfo(DECODER_IDS, ids.dtype, ids.shape)


def is_whole(item: object, both: Infos, part: Infos) -> bool:
    """Whether a source with this `item` (a feed, or a pair with labels) yields samples of the whole
    model with the inputs `both`, and not of `part` only."""
    feed = item[0] if isinstance(item, tuple) and item else item
    if not isinstance(feed, Mapping) or DECODER_IDS in feed:
        return True
    only = {info.name for info in part} - {info.name for info in both}
    return bool(only) and feed.keys().isdisjoint(only)


def of_encoder(feed: Feed) -> Feed:
    """The inputs of the encoder, from a feed of the whole model."""
    return {name: array for name, array in feed.items() if name != DECODER_IDS}


def of_decoder(feed: Feed, encoded: Feed) -> Feed:
    """The inputs of the decoder. `encoded`: the outputs of the encoder for the same feed."""
    return {IDS: feed[DECODER_IDS], **crossed(feed, encoded)}


def crossed(feed: Feed, encoded: Feed) -> Feed:
    """The inputs that the decoder gets from the encoder: the mask over its tokens, its keys and
    values."""
    mask = {ENCODER_MASK: feed[MASK]} if MASK in feed else {}
    return mask | {name.replace("present", "past_key_values"): a for name, a in encoded.items()}
