"""Functions of torch without a translation, and those that are no functions of numbers.

Together with the cases of `functions`, they are all that `torch.nn.functional` and `torch.special`
have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

_ONE = """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma erfinv gammaln i0 i0e i1 i1e
modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri psi
scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"""
_TWO = """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v
chebyshev_polynomial_w gammainc gammaincc hermite_polynomial_h hermite_polynomial_he
laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
zeta"""

Call = Callable[[torch.Tensor], torch.Tensor]


def _of_two(name: str) -> Call:
    return lambda x: getattr(torch.special, name)(x, x)


REFUSED: Mapping[str, Call] = {
    **{f"special.{name}": getattr(torch.special, name) for name in _ONE.split()},
    **{f"special.{name}": _of_two(name) for name in _TWO.split()},
    "special.multigammaln": lambda x: torch.special.multigammaln(x.abs() + 3, 2),
    "special.polygamma": lambda x: torch.special.polygamma(1, x),
    "F.pdist": F.pdist,
    "F.native_channel_shuffle": lambda x: F.native_channel_shuffle(x.reshape(3, 4, 2, 1), 2),
    "F.rrelu": lambda x: F.rrelu(x, training=False),
}
"""Each is refused with the name of its operator."""

RANDOM = frozenset(
    f"F.{name}"
    for name in [
        "alpha_dropout",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_alpha_dropout",
        "fractional_max_pool2d",
        "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d",
        "fractional_max_pool3d_with_indices",
        "gumbel_softmax",
    ]
)
NOT_TRIED = frozenset(
    f"F.{name}"
    for name in [
        "adaptive_max_pool1d_with_indices",
        "adaptive_max_pool2d_with_indices",
        "adaptive_max_pool3d_with_indices",
        "conv_tbc",
        "ctc_loss",
        "gaussian_nll_loss",
        "grouped_mm",
        "linear_cross_entropy",
        "max_pool1d_with_indices",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "max_unpool1d",
        "max_unpool2d",
        "max_unpool3d",
        "multi_head_attention_forward",
        "multilabel_margin_loss",
        "one_hot",
        "scaled_grouped_mm",
        "scaled_mm",
    ]
)
"""Of integers, indices or 8-bit floats, or losses that check their values; not in the test."""

NOT_FUNCTIONS = frozenset(
    f"F.{name}"
    for name in [
        "assert_int_or_pair",
        "boolean_dispatch",
        "handle_torch_function",
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
    ]
)
