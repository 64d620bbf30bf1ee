"""Encoder-decoders against a network computed by hand: padding, starts, sound, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import audio
from optkit.satellites.generation import Sampling, Speculation, generate
from optkit.satellites.generation.starting import DecoderStart
from tests.conftest import valid
from tests.generation import pairs
from tests.generation.pairs import Pair
from tests.generation.test_generate import optkit

PROMPTS = {"w1 w2 w3": [1, 2, 3], "w9": [9], "w4 w4 w7 w5": [4, 4, 7, 5]}
RATE = 16000


@pytest.fixture
def pair() -> Pair:
    return Pair.random(1)


def test_each_text_of_a_padded_batch_is_what_it_is_alone(pair: Pair, tmp_path: Path) -> None:
    made = pairs.make(pair, tmp_path, decoder_start_token_id=3)
    told = dict.fromkeys(range(3), "")

    def hear(row: int, text: str) -> None:
        told[row] += text

    found = generate(made, list(PROMPTS), max_new_tokens=6, heard=hear, threads=1)
    for text, (prompt, ids) in zip(found.texts, PROMPTS.items(), strict=True):
        assert (text.prompt, text.prompt_tokens) == (prompt, ids)
        assert text.tokens == pair.written(pair.sources[ids], [3], 6)
        assert text.text == " ".join(f"w{token}" for token in text.tokens)
    assert list(told.values()) == [text.text for text in found.texts]
    assert found.encode is not None
    assert [phase.tokens for phase in (found.encode, found.prefill, found.decode)] == [8, 3, 15]


def test_a_text_starts_as_the_generation_config_says(pair: Pair, tmp_path: Path) -> None:
    (ids, encoded) = [1, 2, 3], pair.sources[[1, 2, 3]]
    free = pair.written(encoded, [3], 1)
    for name, config, start, wanted in (
        ("listed", {"forced_decoder_ids": [[1, 5], [2, 6]]}, [3, 5, 6], None),
        ("forced", {"forced_bos_token_id": 7}, [3], [7, *pair.written(encoded, [3, 7], 5)]),
        ("never", {"suppress_tokens": free}, [3], pair.written(encoded, [3], 6, free)),
        ("late", {"begin_suppress_tokens": free}, [3], None),
        ("silent", {"no_timestamps_token_id": 11}, [3, 11], None),
        ("told", {"language": "german", "task": "transcribe", "lang_to_id": {"<|de|>": 8},
                  "task_to_id": {"transcribe": 9}}, [3, 8, 9], None),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        made = pairs.make(pair, tmp_path / name, decoder_start_token_id=3, **config)
        if name == "late":
            first = pair.written(encoded, [3], 1, free)
            wanted = [*first, *pair.written(encoded, [3, *first], 5)]
        (text,) = generate(made, [" ".join(f"w{one}" for one in ids)], max_new_tokens=6).texts
        assert text.tokens == (wanted or pair.written(encoded, start, 6)), name


def test_a_generation_config_stands_for_itself() -> None:
    config = {"decoder_start_token_id": 3, "suppress_tokens": [1], "eos_token_id": 2}
    told = DecoderStart.of(
        config, {"begin_suppress_tokens": [2], "forced_bos_token_id": None}, "here"
    )
    assert told == DecoderStart((3,), never_first=(2,))
    assert DecoderStart.of(config, {}, "here") == DecoderStart((3,), never=(1,))


def test_a_language_that_is_not_told_is_heard(pair: Pair, tmp_path: Path) -> None:
    languages = {"<|en|>": 4, "<|de|>": 8}
    made = pairs.make(pair, tmp_path, decoder_start_token_id=3, lang_to_id=languages,
                      forced_decoder_ids=[[1, None], [2, 10]])  # fmt: skip
    for text, ids in zip(generate(made, list(PROMPTS)).texts, PROMPTS.values(), strict=True):
        encoded = pair.sources[ids]
        logits = pair.logits(encoded, [3])
        heard = max(languages.values(), key=lambda token: logits[token])
        assert text.tokens == pair.written(encoded, [3, heard, 10], 17)  # 20 positions


def test_sound_is_prepared_by_the_models_extractor(tmp_path: Path) -> None:
    pair = Pair.random(2, pairs.BINS)
    pair = Pair(pair.sources / 300, pair.targets, pair.head)
    made = pairs.make(pair, tmp_path, sound=True, decoder_start_token_id=3)
    rng = np.random.default_rng(0)
    waves = [rng.normal(0, 0.1, size).astype(np.float32) for size in (RATE // 2, RATE)]
    wavfile.write(tmp_path / "one.wav", RATE, waves[0])
    found = generate(made, audio=[tmp_path / "one.wav", waves[1]], max_new_tokens=6)
    mels = {"input_features": TensorInfo("input_features", "float32", ("batch", 20, 100))}
    features = audio.features(None, str(made.path / "encoder"), mels)(waves)["input_features"]
    for text, frames in zip(found.texts, features, strict=True):
        assert text.tokens == pair.written(frames.T @ pair.sources, [3], 6)
        assert text.prompt_tokens == []
    assert found.texts[0].prompt == str(tmp_path / "one.wav")
    assert found.encode is not None and found.encode.tokens == 200
    with pytest.raises(
        InputRefused, match=r"recording 0: it lasts 2\.0 s, but the model takes at most 1\.0"
    ):
        generate(made, audio=[np.concatenate([waves[1]] * 2)])
    with pytest.raises(InputRefused, match="not a WAV file"):
        generate(made, audio=[tmp_path / "encoder.onnx"])


@pytest.mark.slow
def test_the_command_hears(tmp_path: Path) -> None:
    made = pairs.make(Pair.random(2, pairs.BINS), tmp_path, sound=True, decoder_start_token_id=3)
    wave = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    wavfile.write(tmp_path / "one.wav", RATE, wave)
    done = optkit("generate", made.path, "--audio", tmp_path / "one.wav", "--json", "-q")
    told = valid(json.loads(done.stdout))
    assert told["texts"][0]["tokens"] == generate(made, audio=[wave]).texts[0].tokens
    assert told["encode"]["tokens"] == 100 and told["encode"]["evidence"] == "measured"
    for option, given, reason in (
        ("--prompt", "w1", "takes audio, not text"),
        ("--audio", tmp_path / "gone.wav", "does not exist"),
    ):
        refused = optkit("generate", made.path, option, given)
        assert refused.returncode == 2 and reason in refused.stderr


def test_a_seed_gives_the_same_text_again(pair: Pair, tmp_path: Path) -> None:
    made = pairs.make(pair, tmp_path, decoder_start_token_id=3)
    texts = [generate(made, ["w1"], sampling=Sampling(seed=seed)).texts[0].tokens
             for seed in (1, 1, 2)]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]


def test_the_command_prints_the_text_alone_and_its_pace(pair: Pair, tmp_path: Path) -> None:
    made = pairs.make(pair, tmp_path, decoder_start_token_id=3)
    wanted = " ".join(f"w{t}" for t in pair.written(pair.sources[[4, 2]], [3], 5))
    done = optkit("generate", made.path, "--prompt", "w4 w2", "--max-new-tokens", "5")
    assert (done.returncode, done.stdout) == (0, f"{wanted}\n")
    assert "encode 2 tokens" in done.stderr and "decode 4 tokens" in done.stderr


def test_what_does_not_fit_is_refused(pair: Pair, tmp_path: Path) -> None:
    made = pairs.make(pair, tmp_path, decoder_start_token_id=3)
    with pytest.raises(UsageError, match="speculative decoding is for decoders"):
        generate(made, ["w1"], speculation=Speculation())
    with pytest.raises(UsageError, match="takes text, not audio"):
        generate(made, audio=["one.wav"])
    with pytest.raises(
        InputRefused, match="prompt 1: the prompt has 21 tokens, the model takes 20"
    ):
        generate(made, ["w1", "w1 " * 21])
    with pytest.raises(InputRefused, match="prompt 0: the prompt has no tokens"):
        generate(made, [""])
    with pytest.raises(InputRefused, match="only the decoder of an encoder-decoder"):
        generate(made.parts["decoder"], ["w1"])
    for name, config, told in (
        ("start", {}, "the decoder's start token is not known"),
        ("language", {"decoder_start_token_id": 3, "language": "de"}, "no token for the language"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(InputRefused, match=told):
            generate(pairs.make(pair, tmp_path / name, **config), ["w1"])


def test_without_a_mask_texts_of_one_length_alone_are_a_batch(pair: Pair, tmp_path: Path) -> None:
    made = pairs.make(pair, tmp_path, masked=False, decoder_start_token_id=3)
    texts = generate(made, ["w1 w2", "w5 w6"], max_new_tokens=4).texts
    for text, ids in zip(texts, ([1, 2], [5, 6]), strict=True):
        assert text.tokens == pair.written(pair.sources[ids], [3], 4)
    with pytest.raises(InputRefused, match=r"1 to 2 tokens cannot be one batch.*attention_mask"):
        generate(made, ["w1 w2", "w5"])
