"""The models of the benchmark rows as work: layer shapes, token counts, and where each is from.

Shapes are arithmetic on published configurations. What was recalled and not read again says
`unverified` and stands in one place, the table of ASSUMED below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.craft.prediction.work import BITS, Work, gemm

# value, where it is from. `unverified`: recalled.
ASSUMED: dict[str, tuple[float, str]] = {
    "squad_tokens": (178, "mean unpadded length of MLPerf's SQuAD samples, unverified"),
    "openorca_in": (155, "mean prompt of MLPerf's OpenOrca samples in tokens, unverified"),
    "openorca_out": (
        294.45,
        "tokens_per_sample that MLPerf's accuracy script of Llama-2-70B prints",
    ),
    "cnn_in": (870, "mean article of MLPerf's CNN/DailyMail samples in tokens, unverified"),
    "cnn_out": (69, "tokens per sample (note of the L4 row)"),
    "cnn_beams": (4, "beam width of MLPerf's GPT-J, unverified"),
    "llama_cpp_context": (512, "mean context of the llama.cpp runs, unverified"),
    "gpt_fast_context": (100, "half of the 200 tokens that gpt-fast generates, unverified"),
    "llama_cpp_kernels": (28, "per layer, counted in its graph of 2023, unverified"),
    "gpt_fast_kernels": (12, "per layer, five matrix products and Triton kernels, unverified"),
    "sdxl_clip_tokens": (77, "context of both text encoders (SDXL's model card)"),
    "in_flight_share": (0.9, "of the memory left for the cache: TensorRT-LLM's default"),
}

# Touvron et al. 2023 (arXiv 2302.13971, 2307.09288), Meta's Llama 3.1 model card, and the model
# card of EleutherAI/gpt-j-6B.
LLAMA_7B = DecoderShape(32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_70B = DecoderShape(80, 8192, 64, 8, 128, 28672, 32000)
LLAMA_31_8B = DecoderShape(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_33_70B = DecoderShape(80, 8192, 64, 8, 128, 28672, 128256)
GPT_J_6B = DecoderShape(28, 4096, 16, 16, 256, 16384, 50400, gated=False)


def assumed(name: str) -> float:
    return ASSUMED[name][0]


def conv(
    batch: float, side: int, ins: int, outs: int, kernel: int, *, stride: int = 1, dtype: str,
    added: bool = False, weight_bits: float | None = None,
) -> Work:  # fmt: skip
    """A square convolution on a `side` × `side` picture, what follows it fused in. `added`: it also
    reads a shortcut."""
    out = side // stride
    held = BITS[dtype]
    rows = batch * out * out
    moved = batch * side * side * ins + rows * outs * (2 if added else 1)
    inner = kernel * kernel * ins
    return Work(
        "conv", dtype, 2 * rows * inner * outs, inner * outs * (weight_bits or held) / 8,
        moved * held / 8, rows=rows, columns=outs,
    )  # fmt: skip


def resnet50(batch: float, dtype: str) -> list[Work]:
    """ResNet-50 v1.5 at 224 (arXiv 1512.03385; v1.5 has the stride in the 3 × 3)."""
    found = [conv(batch, 224, 3, 64, 7, stride=2, dtype=dtype)]
    found.append(Work("elementwise", dtype, moved=batch * 64 * (112**2 + 56**2) * BITS[dtype] / 8))
    side, ins = 56, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            found.append(conv(batch, side, ins, width, 1, dtype=dtype))
            found.append(conv(batch, side, width, width, 3, stride=stride, dtype=dtype))
            if block == 0:
                found.append(conv(batch, side, ins, 4 * width, 1, stride=stride, dtype=dtype))
            side //= stride
            found.append(conv(batch, side, width, 4 * width, 1, dtype=dtype, added=True))
            ins = 4 * width
    found.append(Work("elementwise", dtype, moved=batch * 2048 * 49 * BITS[dtype] / 8))
    found.append(gemm(batch, 2048, 1000, dtype=dtype, weight_bits=BITS[dtype]))
    return found


def depthwise(batch: float, side: int, channels: int, *, stride: int = 1) -> Work:
    """3 × 3, one filter for each channel, in FP16: no engine multiplies it in less."""
    rows = batch * (side // stride) ** 2
    moved = 2 * channels * (batch * side * side + rows)
    return Work("conv", "fp16", 18 * rows * channels, 18 * channels, moved,
                rows=rows, columns=channels)  # fmt: skip


def mobilenet_v1(batch: float) -> list[Work]:
    """Howard et al. 2017, arXiv 1704.04861."""
    found, side, ins = [conv(batch, 224, 3, 32, 3, stride=2, dtype="fp16")], 112, 32
    for outs, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                         *[(512, 1)] * 5, (1024, 2), (1024, 1)):  # fmt: skip
        found.append(depthwise(batch, side, ins, stride=stride))
        side //= stride
        found.append(conv(batch, side, ins, outs, 1, dtype="fp16"))
        ins = outs
    return [*found, *_classifier(batch, side, ins)]


def mobilenet_v2(batch: float) -> list[Work]:
    """Sandler et al. 2018, arXiv 1801.04381."""
    found, side, ins = [conv(batch, 224, 3, 32, 3, stride=2, dtype="fp16")], 112, 32
    for wider, outs, times, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                      (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
        for block in range(times):
            stride = first if block == 0 else 1
            if wider > 1:
                found.append(conv(batch, side, ins, wider * ins, 1, dtype="fp16"))
            found.append(depthwise(batch, side, wider * ins, stride=stride))
            side //= stride
            found.append(conv(batch, side, wider * ins, outs, 1, dtype="fp16", added=block > 0))
            ins = outs
    found.append(conv(batch, side, ins, 1280, 1, dtype="fp16"))
    return [*found, *_classifier(batch, side, 1280)]


def _classifier(batch: float, side: int, ins: int) -> Iterator[Work]:
    yield Work("elementwise", "fp16", moved=2 * batch * ins * side**2)
    yield gemm(batch, ins, 1000, dtype="fp16", weight_bits=16)


def yolov8n(batch: float, dtype: str) -> list[Work]:
    """YOLOv8n at 640 without the suppression of overlaps (Ultralytics' yolov8.yaml, scale n)."""
    found: list[Work] = []

    def one(side: int, ins: int, outs: int, kernel: int, stride: int = 1) -> None:
        found.append(conv(batch, side, ins, outs, kernel, stride=stride, dtype=dtype))

    def c2f(side: int, ins: int, outs: int, blocks: int) -> None:
        half = outs // 2
        one(side, ins, outs, 1)
        for _ in range(2 * blocks):
            one(side, half, half, 3)
        one(side, (2 + blocks) * half, outs, 1)

    def passing(side: int, channels: int, kernels: float = 1.0) -> None:
        moved = 2 * batch * side**2 * channels * BITS[dtype] / 8
        found.append(Work("elementwise", "fp16", moved=moved, kernels=kernels))

    one(640, 3, 16, 3, 2)
    for side, ins, blocks in ((320, 16, 1), (160, 32, 2), (80, 64, 2), (40, 128, 1)):
        one(side, ins, 2 * ins, 3, 2)
        c2f(side // 2, 2 * ins, 2 * ins, blocks)
    one(20, 256, 128, 1)
    passing(20, 128, 3)  # three poolings
    one(20, 512, 256, 1)
    passing(40, 256)  # enlarged
    c2f(40, 384, 128, 1)
    passing(80, 128)
    c2f(80, 192, 64, 1)
    one(80, 64, 64, 3, 2)
    c2f(40, 192, 128, 1)
    one(40, 128, 128, 3, 2)
    c2f(20, 384, 256, 1)
    for side, ins in ((80, 64), (40, 128), (20, 256)):
        for inner, outs in ((64, 64), (80, 80)):
            one(side, ins, inner, 3)
            one(side, inner, inner, 3)
            one(side, inner, outs, 1)
    passing(80, 144, 3)  # the boxes of all three sizes, from their distributions
    return found


# hidden size, layers
BERT = {"base": (768, 12), "large": (1024, 24)}


def bert(size: str, batch: float, tokens: float, dtype: str, carrier: str) -> list[Work]:
    """BERT (Devlin et al. 2018, arXiv 1810.04805) on `tokens` tokens per sample. `carrier`: of
    attention and of what passes between the products."""
    (hidden, layers), rows, bits = BERT[size], batch * tokens, BITS[carrier]

    def product(ins: int, outs: int) -> Work:
        return gemm(rows, ins, outs, dtype=dtype, weight_bits=BITS[dtype], times=layers)

    products = [product(hidden, 3 * hidden), product(hidden, hidden),
                product(hidden, 4 * hidden), product(4 * hidden, hidden)]  # fmt: skip
    attention = Work("attention", carrier, 4 * batch * tokens**2 * hidden,
                     moved=rows * 4 * hidden * bits / 8, times=layers)  # fmt: skip
    norms = Work("elementwise", carrier, moved=2 * rows * 3 * hidden * bits / 8, kernels=2,
                 times=layers)  # fmt: skip
    return [*products, attention, norms]


def swin_base(batch: float) -> list[Work]:
    """Swin-B at 384 with windows of 12 × 12 (Liu et al. 2021, arXiv 2103.14030) in FP16."""
    found, side, width = [conv(batch, 384, 3, 128, 4, stride=4, dtype="fp16")], 96, 128
    for depth in (2, 2, 18, 2):
        rows = batch * side**2

        def product(ins: int, outs: int, n: int, on: float) -> Work:
            return gemm(on, ins, outs, dtype="fp16", weight_bits=16, times=n)

        found += [product(ins * width, outs * width, depth, rows)
                  for ins, outs in ((1, 3), (1, 1), (1, 4), (4, 1))]  # fmt: skip
        found.append(Work("attention", "fp16", 4 * rows * 144 * width, moved=8 * rows * width,
                          times=depth))  # fmt: skip
        # two norms, and the windows cut and joined again
        found.append(Work("elementwise", "fp16", moved=16 * rows * width, kernels=4, times=depth))
        if side > 12:
            side, width = side // 2, 2 * width
            found.append(product(2 * width, width, 1, rows / 4))
    return found


def sdxl(steps: int, linear: str, convolution: str, carrier: str = "fp16") -> list[Work]:
    """SDXL-base at 1024 (Podell et al. 2023, arXiv 2307.01952; sizes of its unet/config.json), one
    prompt with guidance: a batch of two, and the VAE's decoder once in the carrier."""
    once = _unet(2, linear, convolution, carrier)
    return [*(replace(work, times=work.times * steps) for work in once), *_vae_decoder(carrier)]


def _unet(batch: int, linear: str, convolution: str, carrier: str) -> Iterator[Work]:
    def residual(side: int, ins: int, outs: int) -> Iterator[Work]:
        held = BITS[carrier] / 8
        yield conv(batch, side, ins, outs, 3, dtype=convolution)
        yield conv(batch, side, outs, outs, 3, dtype=convolution, added=True)
        if ins != outs:
            yield conv(batch, side, ins, outs, 1, dtype=convolution)
        # two group norms with their activation: read twice, written once
        yield Work(
            "elementwise", carrier, moved=3 * batch * side**2 * (ins + outs) * held, kernels=2
        )

    def transformer(side: int, width: int, depth: int) -> Iterator[Work]:
        rows, words, held = batch * side**2, int(assumed("sdxl_clip_tokens")), BITS[carrier] / 8

        def product(ins: int, outs: int, n: int = depth, on: float = rows) -> Work:
            return gemm(on, ins, outs, dtype=linear, weight_bits=BITS[linear], times=n)

        yield product(width, width, 2)
        yield product(width, 3 * width)
        yield product(width, width, 3 * depth)  # both outputs and the query of the cross attention
        yield product(2048, 2 * width, on=batch * words)
        yield product(width, 8 * width)
        yield product(4 * width, width)
        for keys in (side**2, words):
            yield Work("attention", carrier, 4 * rows * keys * width,
                       moved=4 * rows * width * held, times=depth)  # fmt: skip
        # three layer norms (read, write) and the gate of the MLP (read 8, write 4)
        yield Work("elementwise", carrier, moved=rows * 18 * width * held, kernels=4, times=depth)

    yield conv(batch, 128, 4, 320, 3, dtype=convolution)
    for _ in range(2):
        yield from residual(128, 320, 320)
    yield conv(batch, 128, 320, 320, 3, stride=2, dtype=convolution)
    for ins in (320, 640):
        yield from residual(64, ins, 640)
        yield from transformer(64, 640, 2)
    yield conv(batch, 64, 640, 640, 3, stride=2, dtype=convolution)
    for ins in (640, 1280):
        yield from residual(32, ins, 1280)
        yield from transformer(32, 1280, 10)
    yield from residual(32, 1280, 1280)
    yield from transformer(32, 1280, 10)
    yield from residual(32, 1280, 1280)
    for skip in (1280, 1280, 640):
        yield from residual(32, 1280 + skip, 1280)
        yield from transformer(32, 1280, 10)
    yield conv(batch, 64, 1280, 1280, 3, dtype=convolution)
    for ins in (1920, 1280, 960):
        yield from residual(64, ins, 640)
        yield from transformer(64, 640, 2)
    yield conv(batch, 128, 640, 640, 3, dtype=convolution)
    for ins in (960, 640, 640):
        yield from residual(128, ins, 320)
    yield conv(batch, 128, 320, 4, 3, dtype=convolution)


def _vae_decoder(dtype: str) -> Iterator[Work]:
    """Four levels of three residual blocks, doubling the side; attention in the middle."""
    side, ins = 128, 512
    for _ in range(4):
        yield conv(1, side, 512, 512, 3, dtype=dtype)
    yield Work("attention", dtype, 4 * side**4 * 512, moved=4 * side**2 * 512 * 2)
    for level, width in enumerate((512, 512, 256, 128)):
        for _ in range(3):
            yield conv(1, side, ins, width, 3, dtype=dtype)
            yield conv(1, side, width, width, 3, dtype=dtype, added=True)
            yield Work("elementwise", dtype, moved=3 * side**2 * (ins + width) * 2, kernels=2)
            ins = width
        if level < 3:
            side *= 2
            yield conv(1, side, width, width, 3, dtype=dtype)
    yield conv(1, side, 128, 3, 3, dtype=dtype)
