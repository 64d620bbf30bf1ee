"""Real inputs for the models of models.yaml: each function yields samples, one dictionary of arrays
each, whose first axis is the batch of 1. What they are made of is in its docstring.

Pages and lines are sentences of this Python's own documentation, drawn with DejaVu fonts and PIL's
own. Speech is the same sentences, spoken by eSpeak NG (`espeakng-loader`): synthetic, not
recorded. Photos are those of scikit-image and scikit-learn, in random crops.
"""

from __future__ import annotations

import ctypes
import inspect
import pkgutil
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy.signal import resample_poly

Array = np.ndarray
Sample = dict[str, np.ndarray]
Maker = Callable[[np.random.Generator, Path], Iterator[Sample]]

RATE = 16_000
FRAME, CONTEXT = 512, 64  # samples of a frame of Silero, and those kept of the frame before
MAKERS: dict[str, Maker] = {}


def _maker(function: Maker) -> Maker:
    MAKERS[function.__name__] = function
    return function


@cache
def sentences() -> tuple[str, ...]:
    """Sentences in ASCII from docstrings of the standard library, 12 to 60 characters each."""
    found: dict[str, None] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules([sysconfig.get_path("stdlib")])):
        if module.startswith("_") or module in ("antigravity", "idlelib", "this", "turtledemo"):
            continue
        try:
            text = inspect.getdoc(import_module(module)) or ""
        except Exception:  # a module of another system
            continue
        for part in re.split(r"(?<=[.!?])\s+|\n\n", text):
            line = " ".join(part.split())
            if 12 <= len(line) <= 60 and line.isascii():
                found[line] = None
    return tuple(found)


def _font(random: np.random.Generator, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    folder = Path("/usr/share/fonts/truetype/dejavu")
    fonts = [path for path in sorted(folder.glob("DejaVu*.ttf")) if "Math" not in path.name]
    pick = int(random.integers(len(fonts) + 1))
    return ImageFont.truetype(fonts[pick], size) if pick < len(fonts) else (
        ImageFont.load_default(size)
    )  # fmt: skip


def _line(random: np.random.Generator) -> Image.Image:
    """A sentence, dark on light, with a little blur and noise."""
    text = str(random.choice(np.array(sentences())))[:32]
    font = _font(random, int(random.integers(18, 40)))
    left, top, right, bottom = font.getbbox(text)
    margin = int(random.integers(2, 9))
    size = int(right - left) + 2 * margin, int(bottom - top) + 2 * margin
    paper, ink = int(random.integers(200, 256)), int(random.integers(0, 90))
    picture = Image.new("RGB", size, (paper,) * 3)
    ImageDraw.Draw(picture).text((margin - left, margin - top), text, (ink,) * 3, font)
    return _worn(random, picture)


def _worn(random: np.random.Generator, picture: Image.Image) -> Image.Image:
    picture = picture.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 0.8))))
    noise = random.normal(0, random.uniform(0, 8), np.shape(picture))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype("uint8"))


def _page(random: np.random.Generator, width: int, height: int) -> Image.Image:
    """A page with a title, paragraphs and, in half of the pages, a photo."""
    picture = Image.new("RGB", (width, height), (int(random.integers(225, 256)),) * 3)
    pen, top = ImageDraw.Draw(picture), int(height * 0.05)
    lines, left = sentences(), int(width * 0.08)
    for block in range(12):
        size = int(height / (18 if block == 0 else random.integers(34, 50)))
        font = _font(random, size)
        text = " ".join(random.choice(np.array(lines), 1 if block == 0 else 4))
        wrapped = textwrap.wrap(text, int(width * 0.84 / (size * 0.62)))
        for line in wrapped[: 1 if block == 0 else 5]:
            if top + size > height * 0.95:
                return _worn(random, picture)
            pen.text((left, top), line, (int(random.integers(0, 70)),) * 3, font)
            top += int(size * 1.35)
        top += size
    return _worn(random, picture)


def _planes(picture: Image.Image, mean: float | Array, std: float | Array) -> Array:
    values = (np.asarray(picture, np.float32) / 255 - mean) / std
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None].astype(np.float32))


def _padded(picture: Image.Image, widest: int) -> Array:
    """A picture 48 pixels high, padded with grey to this width."""
    width = min(widest, round(picture.width * 48 / picture.height))
    values = np.zeros((1, 3, 48, widest), np.float32)
    values[..., :width] = _planes(picture.resize((width, 48)), 0.5, 0.5)
    return values


IMAGENET = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


@_maker
def file_bytes(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """Files of this Python installation, four at most of one suffix and folder, as Magika reads
    them: 1,024 bytes of each end without white space, padded with 256."""
    root = Path(sysconfig.get_path("purelib"))
    files = [*root.rglob("*"), *Path(sysconfig.get_path("stdlib")).rglob("*"),
             *Path("/usr/share").rglob("*"), *Path("/etc").rglob("*")]  # fmt: skip
    seen: dict[tuple[str, str], int] = {}
    order = random.permutation(len(files))
    for path in (files[number] for number in order):
        group = path.suffix, path.parts[-3] if len(path.parts) > 3 else ""
        if path.suffix == ".pyc" or seen.get(group, 0) >= 4:
            continue
        try:
            if not path.is_file() or path.stat().st_size < 64:
                continue
            with path.open("rb") as stream:
                head = stream.read(4096)
                stream.seek(max(0, path.stat().st_size - 4096))
                tail = stream.read(4096)
        except OSError:
            continue
        seen[group] = seen.get(group, 0) + 1
        head, tail = head.lstrip()[:1024], tail.rstrip()[-1024:]
        row = np.full((1, 2048), 256, np.int32)
        row[0, : len(head)] = list(head)
        row[0, 2048 - len(tail) :] = list(tail)
        yield {"bytes": row}


@_maker
def text_lines(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A line of text, 48 pixels high, padded with grey to 320 pixels."""
    while True:
        yield {"x": _padded(_line(random), 320)}


@_maker
def turned_lines(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A line of text, half of them upside down, 48 x 192 pixels."""
    while True:
        picture = _line(random)
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.ROTATE_180)
        yield {"x": _padded(picture, 192)}


@_maker
def text_pages(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A page of text, 640 x 480 pixels, prepared as the package does, not as PaddleOCR trains
    (ImageNet's mean and deviation)."""
    while True:
        yield {"x": _planes(_page(random, 480, 640), 0.5, 0.5)}


@_maker
def layout_pages(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A page of text, 800 x 608 pixels."""
    while True:
        yield {"image": _planes(_page(random, 608, 800), *IMAGENET)}


@_maker
def turned_pages(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """The middle of a page of text, turned by none to three quarters."""
    while True:
        page = _page(random, 300, 300).rotate(90 * int(random.integers(4)))
        yield {"x": _planes(page.crop((38, 38, 262, 262)), *IMAGENET)}


@cache
def _photos(wheels: Path) -> tuple[Image.Image, ...]:
    """Those of scikit-image's wheel and of scikit-learn."""
    from sklearn.datasets import load_sample_images

    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png",
             "motorcycle_right.png", "hubble_deep_field.jpg", "ihc.png")  # fmt: skip
    paths = [next(wheels.glob(f"scikit_image*/skimage/data/{name}")) for name in names]
    pictures = [Image.open(path).convert("RGB") for path in paths]
    return (*pictures, *(Image.fromarray(each) for each in load_sample_images().images))


def _crop(random: np.random.Generator, wheels: Path, size: int) -> Image.Image:
    photos = _photos(wheels)
    photo = photos[int(random.integers(len(photos)))]
    side = int(min(photo.size) * random.uniform(0.4, 1))
    left, top = (int(random.integers(length - side + 1)) for length in photo.size)
    crop = photo.crop((left, top, left + side, top + side)).resize((size, size))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else crop


@_maker
def photo_crops_320(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A random crop of a photo, 320 x 320 pixels from 0 to 1."""
    while True:
        yield {"images": _planes(_crop(random, wheels, 320), 0, 1)}


@_maker
def photo_crops_bgr(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """A random crop of a photo, 224 x 224 pixels, blue first, without the mean."""
    while True:
        pixels = np.asarray(_crop(random, wheels, 224), np.float32)[..., ::-1]
        yield {"input:0": np.ascontiguousarray(pixels - np.float32([104, 117, 123]))[None]}


class Speaker:
    """eSpeak NG from the wheel of `espeakng-loader`."""

    def __init__(self, wheels: Path) -> None:
        folder = next(wheels.glob("espeakng_loader*/espeakng_loader"))
        self.library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self.rate = self.library.espeak_Initialize(2, 0, str(folder).encode(), 0)
        self.parts: list[Array] = []
        heard = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self.heard = heard(self._hear)  # kept: C calls it
        self.library.espeak_SetSynthCallback(self.heard)

    def _hear(self, wave: object, count: int, events: object) -> int:
        if count > 0:
            self.parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
        return 0

    def say(self, text: str, voice: str, speed: int, pitch: int) -> Array:
        """Samples from -1 to 1 at 16 kHz."""
        self.parts.clear()
        self.library.espeak_SetVoiceByName(voice.encode())
        self.library.espeak_SetParameter(1, speed, 0)
        self.library.espeak_SetParameter(3, pitch, 0)
        encoded = text.encode() + b"\0"
        self.library.espeak_Synth(encoded, len(encoded), 0, 0, 0, 1, None, None)
        wave = np.concatenate(self.parts).astype(np.float32) / 32768
        return resample_poly(wave, RATE, self.rate).astype(np.float32)


_speaker = cache(Speaker)


def _noise(random: np.random.Generator, count: int) -> Array:
    """White to brown noise."""
    spectrum = np.fft.rfft(random.normal(size=count))
    spectrum[1:] /= np.arange(1, len(spectrum)) ** random.uniform(0, 0.8)
    noise = np.fft.irfft(spectrum, count)
    return (noise / np.abs(noise).max()).astype(np.float32)


def _speech(random: np.random.Generator, wheels: Path) -> Array:
    """A sentence in a random English voice between pauses, with noise at 5 to 40 dB."""
    voice = str(random.choice(["en", "en-us", "en-gb-scotland", "en+f3", "en+m4", "en-us+f2"]))
    said = _speaker(wheels).say(
        str(random.choice(np.array(sentences()))), voice,
        int(random.integers(130, 220)), int(random.integers(20, 80)),
    )  # fmt: skip
    pause = np.zeros(int(RATE * random.uniform(0.4, 1.2)), np.float32)
    wave = np.concatenate([pause, said * random.uniform(0.3, 1), pause])
    level = np.abs(said).max() * 10 ** (-random.uniform(5, 40) / 20)
    return np.clip(wave + level * _noise(random, len(wave)), -1, 1).astype(np.float32)


def _frames(wave: Array) -> Array:
    """The frames of Silero, each with the end of the frame before: (frames, 576)."""
    count = len(wave) // FRAME
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), wave])
    return np.stack([padded[FRAME * at : FRAME * at + FRAME + CONTEXT] for at in range(count)])


@_maker
def speech_frames(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """Speech, a frame each, with the state that Silero has there; the frames of all recordings
    in random order."""
    import onnxruntime as ort

    path = next(wheels.glob("silero_vad*/silero_vad/data/silero_vad_16k_op15.onnx"))
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows: list[Sample] = []
    for _ in range(24):
        state = np.zeros((2, 1, 128), np.float32)
        for frame in _frames(_speech(random, wheels)):
            feed = {"input": frame[None], "state": state, "sr": np.array(RATE, np.int64)}
            rows.append(feed)
            state = session.run(["stateN"], feed)[0]
    for number in random.permutation(len(rows)):
        yield rows[number]


@_maker
def speech_sequences(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """Speech, repeated to two seconds, from a state of zeros."""
    zeros = np.zeros((1, 1, 128), np.float32)
    while True:
        wave = np.resize(_speech(random, wheels), 62 * FRAME)
        yield {"input": _frames(wave), "h": zeros, "c": zeros}


@_maker
def noisy_speech(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """Speech with noise, repeated to 9.01 seconds."""
    while True:
        yield {"input_1": np.resize(_speech(random, wheels), 144_160)[None]}


@_maker
def chords(random: np.random.Generator, wheels: Path) -> Iterator[Sample]:
    """Two seconds at 22,050 Hz of one to six plucked notes: ten harmonics that fade, and noise."""
    time = np.arange(43_844) / 22_050
    while True:
        wave = np.zeros_like(time)
        for _ in range(int(random.integers(1, 7))):
            start, key = random.uniform(0, 1.5), int(random.integers(20, 68))
            pitch, late = 27.5 * 2 ** (key / 12), np.maximum(time - start, 0)
            for harmonic in range(1, 11):
                if pitch * harmonic < 10_000:
                    fade = np.exp(-late * (1 + harmonic) * random.uniform(0.6, 1.4))
                    tone = np.sin(2 * np.pi * pitch * harmonic * late) * fade / harmonic
                    wave += np.where(time >= start, tone, 0)
        wave = wave / np.abs(wave).max() * random.uniform(0.2, 0.9)
        wave += 0.003 * _noise(random, len(wave))
        yield {"serving_default_input_2:0": wave.astype(np.float32)[None, :, None]}


def samples(name: str, sizes: tuple[int, int], wheels: Path) -> tuple[list[Sample], list[Sample]]:
    """Calibration and held-out samples; the same on every call."""
    source = MAKERS[name](np.random.default_rng(11), wheels)
    rows = [next(source) for _ in range(sum(sizes))]
    return rows[: sizes[0]], rows[sizes[0] :]
