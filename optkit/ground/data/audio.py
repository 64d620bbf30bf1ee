"""Recordings of a folder as a model's input, prepared by its feature extractor.

WAV files (PCM of 8, 16, 24 or 32 bits, or floats), in one folder or in class subfolders. Several
channels are averaged. A recording with another rate than the model's is resampled by a polyphase
filter (scipy.signal.resample_poly). Transcriptions are in `metadata.csv` or `metadata.jsonl` of the
folder, a row per `file_name`, as in Hugging Face's AudioFolder.

scipy reads the files, because it refuses a truncated file; soundfile (libsndfile) gives the same
samples, in 0.3 to 1.3 times the time, but reads a truncated file without an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground.data import folders, pretrained, reading, rows, targets, tokens
from optkit.ground.data.checking import Item, item
from optkit.ground.data.parts import DECODER_IDS
from optkit.ground.data.reading import SOUNDS, Inputs

_METADATA = ("metadata.csv", "metadata.jsonl")
_FILE = "file_name"


def samples(
    path: Path,
    target: str | None = None,
    length: int | None = None,
    extractor: Path | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Feed]:
    """Feeds of recordings from a folder. They are ordered so that the first few come from different
    classes.

    The feature extractor of the model (or the one in folder `extractor`) prepares them, and cuts
    recordings longer than its window. target: for an encoder-decoder, the column of the metadata
    with the transcription, of which `length` tokens are read (default: the limit of the tokenizer);
    a feed then has decoder_input_ids. tokenizer: a folder or a tokenizer.json (default: the
    model's).

    Raises InputRefused with the name of a file that cannot be read.
    """
    files = [file for file, _ in recordings(path)]
    prepared = features(extractor, model, inputs)
    written = targets.column(target, inputs)
    said = {name: _said(path, name) for name in written}
    spoken = tokens.load(tokenizer, model) if written else None
    for group in reading.grouped(files, inputs):
        feed = prepared([read(file, prepared.rate) for file in group])
        if spoken is not None and target is not None:
            texts = [_text(said[target], file, path) for file in group]
            ids = [text.ids for text in spoken.encode(texts, length=length or spoken.longest)]
            feed[DECODER_IDS] = targets.shifted(ids, spoken, model, inputs, started=True)
        yield feed


def labelled(
    path: Path,
    *,
    classes: list[str] | None,
    extractor: Path | None,
    model: str | None,
    inputs: Inputs | None,
) -> Iterator[Item]:
    """Recordings with the class of their subfolder, int64 [batch]: its index in `classes`, by
    default those of the model, or the sorted names of the subfolders. Recordings of one folder
    within a class folder are a group (`folders.groups`). Arguments as for `samples`."""
    files = recordings(path)
    group_of = folders.groups(files)
    names = folders.classes(path, files, classes, model, "recordings")
    prepared = features(extractor, model, inputs)
    for some in reading.grouped(files, inputs):
        labels = np.asarray([names.index(name) for _, name in some], np.int64)
        waves = [read(file, prepared.rate) for file, _ in some]
        yield item(prepared(waves), labels, None, group_of(some))


def recordings(folder: Path) -> folders.ClassFiles:
    """Each recording and its subfolder. Raises InputRefused for a folder without recordings."""
    return folders.spread(folder, "audio", SOUNDS, "recordings")


@dataclass(frozen=True)
class Features:
    """Converts waveforms to the model's inputs. `rate`: samples per second of the waveforms.
    `window`: number of samples in one input, None if any length is allowed."""

    rate: int
    window: int | None
    inputs: Inputs | None
    _extractor: Any

    def __call__(self, waveforms: Sequence[np.ndarray]) -> Feed:
        """The inputs for waveforms float32 [samples] in [-1, 1], in the dtypes of the model. Raises
        InputRefused."""
        extracted = self._extractor(
            list(waveforms), sampling_rate=self.rate, return_tensors="np", **self._padding()
        )
        inputs = self.inputs or {}
        feed = {name: extracted[name] for name in extracted if name in inputs}
        name = self._extractor.model_input_names[0]
        feed[_receiving(inputs, name, extracted[name].ndim)] = extracted[name]
        return {
            name: np.asarray(array, inputs[name].dtype if name in inputs else np.float32)
            for name, array in feed.items()
        }

    def _padding(self) -> dict[str, object]:
        """Padding options of an extractor that returns waveforms and so has no window."""
        if not _bare(self._extractor):
            return {}
        if self.window is None:
            return {"padding": True}
        return {"padding": "max_length", "max_length": self.window, "truncation": True}


def features(extractor: Path | None, model: str | None, inputs: Inputs | None) -> Features:
    """The feature extractor in folder `extractor`, otherwise the model's own. Raises
    InputRefused."""
    folder = extractor or (Path(model) if model else None)
    if folder is None or not pretrained.holds_processor(folder):
        raise InputRefused(
            f"no feature extractor: there is no {pretrained.PROCESSORS[0]}"
            if extractor
            else "the model has no feature extractor",
            where=str(folder) if extractor else None,
            hint="give its folder in args.extractor; its save_pretrained writes one",
        )
    load = pretrained.loader("AutoFeatureExtractor", folder)
    try:
        loaded = load()
        rate = int(loaded.sampling_rate)
    except Exception as error:  # that of pictures has no rate
        reason = f"the feature extractor of sound cannot be read: {error}"
        raise InputRefused(reason, where=str(folder), hint="save it again") from error
    return Features(rate, _window(loaded, inputs), inputs, loaded)


def read(file: Path, rate: int) -> np.ndarray:
    """A WAV file as one channel, float32 [samples] in [-1, 1], at `rate` samples per second.

    Raises InputRefused for a file that is not a valid WAV file.
    """
    recorded, wave = _decoded(file)
    if rate != recorded:
        common = gcd(rate, recorded)
        # the import takes half a second, and few recordings need it
        from scipy.signal import resample_poly

        wave = resample_poly(wave, rate // common, recorded // common)
    return wave.astype(np.float32, copy=False)


def _decoded(file: Path) -> tuple[int, np.ndarray]:
    """Samples per second, and float64 [samples]."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are not sound
            warnings.filterwarnings("error", "Reached EOF prematurely")
            with file.open("rb") as opened:
                rate, values = wavfile.read(opened)
        wave = _scaled(values)
        wave = wave.mean(axis=1) if wave.ndim == 2 else wave
        if rate < 1 or not len(wave):
            raise ValueError("the file contains no sound")
        if not np.isfinite(wave).all():
            raise ValueError("the file contains NaN or infinite values")
    except Exception as error:  # for a damaged file the library raises nearly any exception
        reason = f"not a WAV file that can be read: {error}"
        hint = "PCM of 8 to 32 bits, or floats; ffmpeg -i FILE out.wav makes one"
        raise InputRefused(reason, where=str(file), hint=hint) from error
    return int(rate), wave


def _scaled(values: np.ndarray) -> np.ndarray:
    """Samples as float64 in [-1, 1]. Samples of 8 bits are stored as unsigned numbers."""
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    half = float(2 ** (8 * values.dtype.itemsize - 1))
    middle = half if values.dtype.kind == "u" else 0.0
    return (values.astype(np.float64) - middle) / half


def _window(extractor: Any, inputs: Inputs | None) -> int | None:
    """The window according to the extractor (Whisper's); for waveforms, the size of their input.
    Raises InputRefused if no input takes them."""
    if not inputs or not _bare(extractor):
        window: int | None = getattr(extractor, "n_samples", None)
        return window
    shape = inputs[_receiving(inputs, extractor.model_input_names[0], 2)].shape
    return shape[-1] if len(shape) == 2 and isinstance(shape[-1], int) else None


def _bare(extractor: object) -> bool:
    """Whether the extractor returns waveforms [batch, samples] instead of features."""
    return getattr(extractor, "feature_size", None) == 1


def _receiving(inputs: Inputs, name: str, rank: int) -> str:
    """The input with the extractor's `name`, otherwise the only float input with as many axes.
    Raises InputRefused if there are none or several."""
    if not inputs or name in inputs:
        return name
    fitting = [
        other
        for other, info in inputs.items()
        if info.dtype.startswith("float") and len(info.shape) == rank
    ]
    if len(fitting) != 1:
        raise InputRefused(
            f"the model has {len(fitting)} inputs that could take recordings, and no {name!r}",
            hint=f"its inputs are {', '.join(inputs)}; write your own source for them",
        )
    return fitting[0]


def _said(folder: Path, column: str) -> Mapping[str, str]:
    """File name → text, from the metadata of the folder. Raises InputRefused."""
    file = next((folder / name for name in _METADATA if (folder / name).is_file()), None)
    if file is None:
        raise InputRefused(
            f"no {_METADATA[0]} with the transcriptions",
            where=str(folder),
            hint=f"a row per recording: {_FILE}, {column}",
        )
    return {row.text(_FILE): row.text(column) for row in rows.rows(file, (_FILE, column))}


def _text(said: Mapping[str, str], file: Path, folder: Path) -> str:
    name = file.relative_to(folder).as_posix()
    if name not in said:
        hint = f"a row with {_FILE} {name!r}, or remove the recording"
        raise InputRefused(
            "the metadata of the folder has no row for it", where=str(file), hint=hint
        )
    return said[name]
