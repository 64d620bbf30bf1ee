"""Functions of torch, each with calls on arrays of extreme values.

Every public function of `torch.nn.functional` and `torch.special` is in one of the tables; of
`torch` itself those that compute element by element, reductions, and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

Call = Callable[..., torch.Tensor]
Places = Callable[[Mapping[str, np.ndarray]], np.ndarray]


def _extremes() -> np.ndarray:
    special = [0.0, 1e-45, 1e-40, 1.2e-38, np.inf, 0.5, 1, 2, 3, 18, 88, 104, 0.999, 1e4]
    both = np.concatenate([special, np.logspace(-20, 4, 73)])
    return np.concatenate([both, -both, [np.nan], np.linspace(-30, 30, 241)]).astype(np.float32)


def _pairs() -> tuple[np.ndarray, np.ndarray]:
    some = [0.0, 1e-45, 1e-40, 1e-7, 1e-3, 0.3, 1, 1.5, 2, 7, 18, 30, 88, 100, 1e3, 1e4, np.inf]
    values = np.array([*some, *(-value for value in some), np.nan], np.float32)
    first, second = np.meshgrid(values, values)
    return first.ravel(), second.ravel()


def _rows() -> np.ndarray:
    """[rows, 8]: values of one magnitude, of several, far from 0, equal, and with infinities."""
    rng = np.random.default_rng(0)
    scales = [1e-45, 1e-40, 1e-20, 1e-7, 1e-3, 1, 10, 100, 1e3, 1e4]
    plain = [rng.standard_normal(8) * scale for scale in scales for _ in range(3)]
    mixed = [rng.choice(scales, 8) * rng.standard_normal(8) for _ in range(30)]
    shifted = [base + rng.standard_normal(8) for base in (-1e4, -100, 100, 1e4)]
    equal = [np.full(8, value) for value in (0, -0.0, 1, 88, 1e4, -1e4)]
    rows = np.array([*plain, *mixed, *shifted, *equal], np.float32)
    broken = rows[:24].copy()
    broken[range(24), rng.integers(0, 8, 24)] = np.resize([np.inf, -np.inf, np.nan], 24)
    whole = np.full((2, 8), [[-np.inf], [np.nan]], np.float32)
    return np.concatenate([rows, broken, whole])


_X, (_A, _B), _ROWS = _extremes(), _pairs(), _rows()
_WEIGHT = torch.linspace(-1, 1, 64).reshape(8, 8)
ARRAYS: Mapping[str, np.ndarray] = {"x": _X, "a": _A, "b": _B, "rows": _ROWS}


class Case(NamedTuple):
    """A call on arrays of these names. `sums`: it adds several numbers, so that its error is
    relative to the largest one of a row."""

    call: Call
    arrays: tuple[str, ...]
    sums: bool = False


def _image(rows: torch.Tensor) -> torch.Tensor:
    """[rows, 2, 4, 4]."""
    return torch.cat([rows, rows.flip(-1), -rows, rows.roll(1, -1)], 1).reshape(-1, 2, 4, 4)


def _line(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(-1, 2, 4)


def _volume(rows: torch.Tensor) -> torch.Tensor:
    return _image(rows).reshape(-1, 2, 4, 2, 2)


def _of(shaped: Callable[[torch.Tensor], torch.Tensor], call: Call) -> Call:
    return lambda rows: call(shaped(rows))


def _kernel(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape)


def _losses() -> dict[str, Call]:
    """Losses [rows], of predictions and targets made of rows."""
    none: dict[str, Any] = {"reduction": "none"}

    def other(rows: torch.Tensor) -> torch.Tensor:
        return rows.flip(-1) * 0.5

    def first(rows: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(_ROWS)) % 8

    def signs(rows: torch.Tensor) -> torch.Tensor:
        return torch.where(rows > 0, 1.0, -1.0)

    return {
        "binary_cross_entropy": lambda x: F.binary_cross_entropy(
            torch.sigmoid(x.nan_to_num()), (x > 1).float(), **none
        ),
        "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(
            x, (x > 1).float(), pos_weight=torch.tensor(2.0), **none
        ),
        "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(
            x, other(x), signs(x[:, 0]), **none
        ),
        "cross_entropy": lambda x: F.cross_entropy(x, first(x), **none),
        "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, signs(x), **none),
        "huber_loss": lambda x: F.huber_loss(x, other(x), **none),
        "kl_div": lambda x: F.kl_div(x, other(x).abs(), **none),
        "l1_loss": lambda x: F.l1_loss(x, other(x), **none),
        "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, other(x), signs(x), **none),
        "mse_loss": lambda x: F.mse_loss(x, other(x), **none),
        "multi_margin_loss": lambda x: F.multi_margin_loss(x, first(x), **none),
        "multilabel_soft_margin_loss": lambda x: F.multilabel_soft_margin_loss(
            x, (x > 1).float(), **none
        ),
        "nll_loss": lambda x: F.nll_loss(x, first(x), **none),
        "pairwise_distance": lambda x: F.pairwise_distance(x, other(x)),
        "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, other(x).abs(), **none),
        "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, other(x), **none),
        "soft_margin_loss": lambda x: F.soft_margin_loss(x, signs(x), **none),
        "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, other(x), x.roll(1, -1), **none),
        "triplet_margin_with_distance_loss": lambda x: F.triplet_margin_with_distance_loss(
            x, other(x), x.roll(1, -1), **none
        ),
        "cosine_similarity": lambda x: F.cosine_similarity(x, other(x), dim=-1),
    }  # fmt: skip


def _layers() -> dict[str, Call]:
    """Functions of images and rows that add."""
    return {
        "linear": lambda x: F.linear(x, _WEIGHT),
        "bilinear": lambda x: F.bilinear(x, x.flip(-1), _kernel(3, 8, 8)),
        "conv1d": _of(_line, lambda x: F.conv1d(x, _kernel(3, 2, 3))),
        "conv2d": _of(_image, lambda x: F.conv2d(x, _kernel(3, 2, 3, 3))),
        "conv3d": _of(_volume, lambda x: F.conv3d(x, _kernel(3, 2, 2, 2, 2))),
        "conv_transpose1d": _of(_line, lambda x: F.conv_transpose1d(x, _kernel(2, 3, 3))),
        "conv_transpose2d": _of(_image, lambda x: F.conv_transpose2d(x, _kernel(2, 3, 3, 3))),
        "conv_transpose3d": _of(_volume, lambda x: F.conv_transpose3d(x, _kernel(2, 3, 2, 2, 2))),
        "avg_pool1d": _of(_line, lambda x: F.avg_pool1d(x, 2)),
        "avg_pool2d": _of(_image, lambda x: F.avg_pool2d(x, 3, 1, 1)),
        "avg_pool3d": _of(_volume, lambda x: F.avg_pool3d(x, 2)),
        "adaptive_avg_pool1d": _of(_line, lambda x: F.adaptive_avg_pool1d(x, 3)),
        "adaptive_avg_pool2d": _of(_image, lambda x: F.adaptive_avg_pool2d(x, 3)),
        "adaptive_avg_pool3d": _of(_volume, lambda x: F.adaptive_avg_pool3d(x, (3, 1, 2))),
        "lp_pool1d": _of(_line, lambda x: F.lp_pool1d(x, 2.0, 2)),
        "lp_pool2d": _of(_image, lambda x: F.lp_pool2d(x, 2.0, 2)),
        "lp_pool3d": _of(_volume, lambda x: F.lp_pool3d(x, 2.0, 2)),
        "interpolate": _of(_image, lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")),
        "upsample": _of(_image, lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic")),
        "upsample_bilinear": _of(_image, lambda x: F.upsample_bilinear(x, scale_factor=2)),
        "grid_sample": _of(_image, lambda x: F.grid_sample(
            x, _kernel(1, 5, 5, 2).expand(len(_ROWS), -1, -1, -1), align_corners=False)),
        "fold": lambda x: F.fold(x.reshape(-1, 4, 2), (3, 2), (2, 2)),
        "batch_norm": _of(_image, lambda x: F.batch_norm(
            x, torch.tensor([0.5, 1]), torch.tensor([2.0, 3]))),
        "group_norm": _of(_image, lambda x: F.group_norm(x, 2)),
        "instance_norm": _of(_image, F.instance_norm),
        "local_response_norm": _of(_image, lambda x: F.local_response_norm(x, 2)),
        "layer_norm": lambda x: F.layer_norm(x, (8,)),
        "rms_norm": lambda x: F.rms_norm(x, (8,)),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(
            *(x.reshape(-1, 1, 2, 4) for _ in range(3))
        ),
        "affine_grid": lambda x: F.affine_grid(x[:, :6].reshape(-1, 2, 3), [len(_ROWS), 1, 3, 3]),
    }  # fmt: skip


def _moves() -> dict[str, Call]:
    """Functions that move or choose numbers, or compute each alone."""
    return {
        "adaptive_max_pool1d": _of(_line, lambda x: F.adaptive_max_pool1d(x, 3)),
        "adaptive_max_pool2d": _of(_image, lambda x: F.adaptive_max_pool2d(x, 3)),
        "adaptive_max_pool3d": _of(_volume, lambda x: F.adaptive_max_pool3d(x, (3, 1, 2))),
        "max_pool1d": _of(_line, lambda x: F.max_pool1d(x, 2)),
        "max_pool2d": _of(_image, lambda x: F.max_pool2d(x, 3, 1, 1)),
        "max_pool3d": _of(_volume, lambda x: F.max_pool3d(x, 2)),
        "channel_shuffle": _of(_image, lambda x: F.channel_shuffle(x, 2)),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(-1, 8, 1, 1), 2),
        "pixel_unshuffle": _of(_image, lambda x: F.pixel_unshuffle(x, 2)),
        "upsample_nearest": _of(_image, lambda x: F.upsample_nearest(x, scale_factor=2)),
        "unfold": _of(_image, lambda x: F.unfold(x, 2)),
        "pad": lambda x: F.pad(x, (1, 2), value=3.0),
        "embedding": lambda x: F.embedding(torch.arange(8), x),
        "embedding_bag": lambda x: F.embedding_bag(torch.arange(8).reshape(4, 2), x, mode="sum"),
        "glu": lambda x: F.glu(x, -1),
        "threshold": lambda x: F.threshold(x, 0.1, 20.0),
        "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
        "softmax": lambda x: F.softmax(x, -1),
        "softmin": lambda x: F.softmin(x, -1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
    }


def _of_torch() -> dict[str, Call]:
    return {
        "special.logsumexp": lambda x: torch.special.logsumexp(x, -1),
        "special.softmax": lambda x: torch.special.softmax(x, -1),
        "special.log_softmax": lambda x: torch.special.log_softmax(x, -1),
        "logcumsumexp": lambda x: torch.logcumsumexp(x, -1),
        "clamp(min)": lambda x: torch.clamp(x, min=0.25),
        "clamp(min=0)": lambda x: torch.clamp(x, min=0),
        "clamp(max)": lambda x: torch.clamp(x, max=0.25),
        "clamp": lambda x: torch.clamp(x, -2.0, 2.0),
        "amax": lambda x: torch.amax(x, -1),
        "amin": lambda x: torch.amin(x, -1),
        "log(sigmoid)": lambda x: torch.log(torch.sigmoid(x)),
        "F.softplus(beta)": lambda x: F.softplus(x, beta=3.0, threshold=5.0),
        "F.gelu(tanh)": lambda x: F.gelu(x, approximate="tanh"),
    }


def _sums_of_torch() -> dict[str, Call]:
    return {
        "cumsum": lambda x: torch.cumsum(x, -1),
        "sum": lambda x: torch.sum(x, -1),
        "mean": lambda x: torch.mean(x, -1),
        "prod": lambda x: torch.prod(x, -1),
        "std": lambda x: torch.std(x, -1),
        "var": lambda x: torch.var(x, -1),
        "linalg.vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    }


_ELEMENTS: Mapping[str, tuple[Any, tuple[str, ...], str]] = {
    "F.": (
        F, ("x",),
        """celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu
        relu6 selu sigmoid silu softplus softshrink softsign tanh tanhshrink""",
    ),
    "special.": (
        torch.special, ("x",),
        "entr erf erfc erfcx exp2 expit expm1 log1p log_ndtr logit ndtr round sinc",
    ),
    "": (
        torch, ("x",),
        """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad exp floor frac isfinite
        isinf isnan isneginf isposinf log log10 log2 logical_not nan_to_num neg positive rad2deg
        reciprocal rsqrt sgn sign signbit sin sinh sqrt square tan trunc""",
    ),
    "special. ": (torch.special, ("a", "b"), "xlog1py xlogy"),
    " ": (
        torch, ("a", "b"),
        """add atan2 div eq floor_divide fmod ge gt heaviside le logaddexp logaddexp2 logical_and
        logical_or logical_xor lt maximum minimum mul ne pow remainder rsub sub""",
    ),
}  # fmt: skip
"""By the beginning of the names: the module, the arrays, the functions."""


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for prefix, (module, arrays, names) in _ELEMENTS.items():
        for name in names.split():
            found[prefix.strip() + name] = Case(getattr(module, name), arrays)
    rows = ("rows",)
    found |= {f"F.{name}": Case(call, rows, True) for name, call in _losses().items()}
    found |= {f"F.{name}": Case(call, rows, True) for name, call in _layers().items()}
    found |= {f"F.{name}": Case(call, rows) for name, call in _moves().items()}
    found |= {name: Case(call, rows) for name, call in _of_torch().items()}
    return found | {name: Case(call, rows, True) for name, call in _sums_of_torch().items()}


CASES: Mapping[str, Case] = _cases()


class Differs(NamedTuple):
    """Places at which the graph differs from torch, in words for the docs."""

    what: str
    places: Places


def _not_finite(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    given: np.ndarray = ~np.isfinite(arrays["rows"]).all(1)
    return given


def _nan(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.isnan(arrays["x"])


def _subnormal(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    given: np.ndarray = (np.abs(arrays["b"]) < 1.2e-38) & (arrays["b"] != 0)
    return given


_LARGEST = "an infinity becomes the largest finite number"
_IGNORED = "NaN beside other numbers is ignored"
_MIXED = "infinities and NaN can be in other places if an input has any"

DIFFERS: Mapping[str, Differs] = {
    "F.gelu": Differs("∞ stays ∞, where torch gives NaN", lambda x: x["x"] == np.inf),
    "sign": Differs("NaN stays NaN, where torch gives 0", _nan),
    "sgn": Differs("NaN stays NaN, where torch gives 0", _nan),
    "signbit": Differs("-0 counts as positive", lambda x: x["x"] == 0),
    "special.xlog1py": Differs(
        "NaN for an infinity beside the smallest subnormal number", _subnormal
    ),
    "fmod": Differs("subnormal divisors are exact, where torch gives NaN", _subnormal),
    "remainder": Differs("subnormal divisors are exact, where torch gives NaN", _subnormal),
    "log(sigmoid)": Differs(
        "below -104 it stays finite, where torch gives -∞", lambda x: x["rows"] < -87
    ),
    "F.glu": Differs(
        "the sigmoid has an absolute error of 1e-7, also times a large number",
        lambda x: np.abs(x["rows"][:, :4]) > 10,
    ),
    "F.instance_norm": Differs(
        "of equal numbers 0, where torch gives its rounding",
        lambda x: np.ptp(x["rows"], axis=1) == 0,
    ),
    "F.hinge_embedding_loss": Differs(_LARGEST, _not_finite),
    "F.margin_ranking_loss": Differs(_LARGEST, _not_finite),
    "F.multi_margin_loss": Differs(_MIXED, _not_finite),
    "F.cosine_similarity": Differs(_MIXED, _not_finite),
    "F.upsample_bilinear": Differs(_MIXED, _not_finite),
    "F.scaled_dot_product_attention": Differs(_MIXED, _not_finite),
    "amax": Differs(_IGNORED, _not_finite),
    "amin": Differs(_IGNORED, _not_finite),
    "F.max_pool1d": Differs(_IGNORED, _not_finite),
    "F.max_pool2d": Differs(_IGNORED, _not_finite),
    "F.max_pool3d": Differs(_IGNORED, _not_finite),
    "F.adaptive_max_pool1d": Differs(_IGNORED, _not_finite),
    "F.adaptive_max_pool2d": Differs(_IGNORED, _not_finite),
    "F.adaptive_max_pool3d": Differs(_IGNORED, _not_finite),
}
