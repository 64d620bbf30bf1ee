"""Recordings compared with known waveforms: bits, rates, channels; and unreadable files."""

from __future__ import annotations

import json
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import audio, labelled
from optkit.ground.data.parts import DECODER_IDS
from optkit.ground.data.reading import reader_of

RATE = 16000
MELS = {"input_features": TensorInfo("input_features", "float32", ("batch", 20, 100))}
IDS = TensorInfo(DECODER_IDS, "int64", ("batch", "sequence"))


def tone(rate: int = RATE, seconds: float = 0.5, pitch: float = 440.0) -> np.ndarray:
    found: np.ndarray = 0.5 * np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)
    return found


def save(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, samples)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """The folder of a speech model: extractor, tokenizer and config."""
    from transformers import WhisperFeatureExtractor

    path = tmp_path_factory.mktemp("speech")
    WhisperFeatureExtractor(feature_size=20, chunk_length=1).save_pretrained(path)
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    (path / "config.json").write_text(json.dumps({"decoder_start_token_id": 2}))
    return path


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_pcm_of_every_width_is_the_same_sound(tmp_path: Path, bits: int) -> None:
    wanted = tone()
    codes = np.round(wanted * (2 ** (bits - 1) - 1)).astype(np.int64)
    stored = codes + 128 if bits == 8 else codes  # eight bits have no sign
    content = b"".join(int(c).to_bytes(bits // 8, "little", signed=bits > 8) for c in stored)
    with wave.open(str(tmp_path / "one.wav"), "wb") as file:  # an independent writer
        file.setnchannels(1)
        file.setsampwidth(bits // 8)
        file.setframerate(RATE)
        file.writeframes(content)
    found = audio.read(tmp_path / "one.wav", RATE)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1.5 / 2 ** (bits - 1) + 1e-7)


def test_floats_are_as_they_are_and_channels_become_their_mean(tmp_path: Path) -> None:
    one, other = tone().astype(np.float32), tone(pitch=300).astype(np.float32)
    found = audio.read(save(tmp_path / "mono.wav", one), RATE)
    np.testing.assert_array_equal(found, one)
    both = save(tmp_path / "stereo.wav", np.stack([one, other], axis=1))
    np.testing.assert_allclose(audio.read(both, RATE), (one + other) / 2, atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_another_rate_is_resampled(tmp_path: Path, rate: int) -> None:
    file = save(tmp_path / "one.wav", tone(rate).astype(np.float32), rate)
    found = audio.read(file, RATE)
    assert abs(len(found) - len(tone())) <= 1
    inner = slice(400, 7600)  # the filter rings at both ends
    np.testing.assert_allclose(found[inner], tone()[inner], atol=5e-3)


def test_features_are_those_of_the_models_own_extractor(model: Path, tmp_path: Path) -> None:
    from transformers import AutoFeatureExtractor

    waves = [tone(pitch=pitch, seconds=s) for pitch, s in ((200, 0.3), (400, 1.0), (800, 1.4))]
    for index, samples in enumerate(waves):
        save(tmp_path / f"{index}.wav", samples.astype(np.float32))
    (feed,) = audio.samples(tmp_path, model=str(model), inputs=MELS)
    order = [int(file.stem) for file, _ in audio.recordings(tmp_path)]
    theirs = AutoFeatureExtractor.from_pretrained(model)
    given = [waves[index].astype(np.float32) for index in order]
    wanted = theirs(given, sampling_rate=RATE, return_tensors="np")["input_features"]
    np.testing.assert_array_equal(feed["input_features"], wanted)
    assert wanted.shape == (3, 20, 100) and feed.keys() == {"input_features"}


def test_what_is_said_stands_in_the_metadata(model: Path, bpe, tmp_path: Path) -> None:
    texts = {"a.wav": "the model reads", "deep/b.wav": "a text"}
    for name in texts:
        save(tmp_path / name, tone().astype(np.float32))
    rows = [{"file_name": name, "said": text} for name, text in texts.items()]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    inputs = {**MELS, DECODER_IDS: IDS}
    (feed,) = audio.samples(tmp_path, target="said", model=str(model), inputs=inputs)
    files = [f.relative_to(tmp_path).as_posix() for f, _ in audio.recordings(tmp_path)]
    for row, name in zip(feed[DECODER_IDS], files, strict=True):
        whole = bpe.encode(texts[name]).ids  # <s> … </s>, where <s> is what the decoder starts with
        assert row.tolist()[: len(whole) - 1] == whole[:-1] and 2 not in row.tolist()[1:]
    save(tmp_path / "c.wav", tone().astype(np.float32))
    with pytest.raises(InputRefused, match="metadata of the folder") as caught:
        list(audio.samples(tmp_path, target="said", model=str(model), inputs=inputs))
    assert caught.value.where == str(tmp_path / "c.wav")


def test_bare_waveforms_are_filled_up_to_the_models_length(tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(tmp_path / "extractor")
    for name, seconds in (("one/a", 0.25), ("two/b", 0.5)):
        save(tmp_path / "wavs" / f"{name}.wav", tone(seconds=seconds).astype(np.float32))
    args = {"path": tmp_path / "wavs", "extractor": tmp_path / "extractor"}
    for axis, width in (("time", 8000), (6000, 6000)):
        inputs = {"sound": TensorInfo("sound", "float32", ("batch", axis))}
        ((feed, classes),) = labelled.samples(inputs=inputs, **args)  # type: ignore[arg-type]
        assert feed["sound"].shape == (2, width)
        for row, number in zip(feed["sound"], classes, strict=True):
            filled = np.zeros(8000, np.float32)
            filled[: (number + 1) * 4000] = tone(seconds=(number + 1) / 4)
            np.testing.assert_array_equal(row, filled[:width])


def test_the_window_is_that_of_the_input_which_takes_the_sound(tmp_path: Path) -> None:
    """A fixed mask beside it, or fixed ids of a text, are no window."""
    from transformers import Wav2Vec2FeatureExtractor

    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(tmp_path)

    def window(**shapes: tuple[str, tuple[int | str, ...]]) -> int | None:
        inputs = {name: TensorInfo(name, *of) for name, of in shapes.items()}
        return audio.features(tmp_path, None, inputs).window

    ids, mask = ("int64", ("batch", 8)), ("float32", ("batch", 100))
    assert window(ids=ids, input_values=("float32", ("batch", "time"))) is None
    assert window(ids=ids, mask=mask, input_values=("float32", ("batch", 6000))) == 6000
    assert window(ids=ids, sound=("float32", ("batch", 6000))) == 6000
    assert window(input_values=("float32", ("batch", 1024, 128))) is None  # no waveform
    with pytest.raises(InputRefused, match="2 inputs that could take recordings"):
        window(mask=mask, sound=("float32", ("batch", 6000)))
    with pytest.raises(InputRefused, match="0 inputs that could take recordings"):
        window(sound=("float32", ("batch", 1, 6000)))


def test_a_folder_of_recordings_says_its_reader(tmp_path: Path) -> None:
    save(tmp_path / "class" / "one.wav", tone())
    assert reader_of(tmp_path) == "audio"
    (tmp_path / "cover.png").touch()
    assert reader_of(tmp_path) == "images"


def test_what_cannot_be_read_is_reported(model: Path, tmp_path: Path) -> None:
    good = save(tmp_path / "good" / "one.wav", tone().astype(np.float32))
    (tmp_path / "empty").mkdir()
    save(tmp_path / "vision" / "one.wav", tone())
    (tmp_path / "vision" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "CLIPImageProcessor"})
    )
    inputs = {**MELS, DECODER_IDS: IDS}
    given = {"path": tmp_path / "good", "model": str(model), "inputs": MELS}
    for arguments, message in (
        ({**given, "path": tmp_path / "gone"}, "no such folder"),
        ({**given, "path": good}, "no such folder"),
        ({**given, "path": tmp_path / "empty"}, "no recordings"),
        ({**given, "model": None}, "the model has no feature extractor"),
        ({**given, "extractor": tmp_path}, "no preprocessor_config.json"),
        ({**given, "extractor": tmp_path / "vision"}, "extractor of sound cannot be read"),
        ({**given, "inputs": inputs}, "no column for them"),
        ({**given, "inputs": inputs, "target": "said"}, "no metadata.csv"),
        ({**given, "inputs": {"ids": IDS}}, "0 inputs that could take recordings"),
    ):
        with pytest.raises(InputRefused, match=message):
            list(audio.samples(**arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["text", "cut", "silent", "nan", "compressed"])
def test_a_file_that_is_no_sound_wav_is_named(model: Path, tmp_path: Path, wrong: str) -> None:
    file = save(tmp_path / "one.wav", tone().astype(np.float32))
    content = file.read_bytes()
    if wrong == "nan":
        save(file, np.full(100, np.nan, np.float32))
    elif wrong == "silent":
        save(file, np.zeros(0, np.float32))
    else:
        file.write_bytes({
            "text": b"no sound at all",
            "cut": content[: len(content) // 2],
            "compressed": content.replace(struct.pack("<H", 3), struct.pack("<H", 0x55), 1),
        }[wrong])  # fmt: skip
    with pytest.raises(InputRefused, match="not a WAV file that can be read") as caught:
        list(audio.samples(tmp_path, model=str(model), inputs=MELS))
    assert caught.value.where == str(file)
