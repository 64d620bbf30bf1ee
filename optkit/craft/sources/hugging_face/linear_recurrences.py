"""Linear recurrences as one ONNX Scan each, for any number of tokens after any state.

transformers computes them in chunks: the number of chunks is a loop of Python, so torch.export
fixes the number of tokens. A Scan reads token by token, which is also the shortest way to compute
one token. The names below are those of the functions in transformers; each family has a copy.

Gated delta rule (Yang et al., "Gated Delta Networks", 2024; Qwen3-Next, Kimi Linear):

    R_t = S_{t-1} · exp(g_t),  S_t = R_t + k_t ⊗ β_t (v_t − k_tᵀ R_t),  y_t = q_tᵀ S_t

Selective scan (Gu and Dao, "Mamba", 2023; Dao and Gu, "Transformers are SSMs", 2024):

    S_t = S_{t-1} · exp(Δ_t A) + Δ_t x_t ⊗ B_t,  y_t = S_t C_t + D x_t
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_EPSILON = 1e-6  # of the norm of queries and keys


@contextmanager
def scanned(model: PreTrainedModel) -> Iterator[None]:
    """During the body, the recurrences of the model are Scans where torch.export captures them. A
    `mamba_selective_scan` is one everywhere: that of transformers begins with a state of zeros
    whatever came before."""
    import torch
    from transformers.cache_utils import Cache

    states: list[Tensor | None] = [None]
    read = Cache.get_recurrent_state

    def remembered(cache: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        states[0] = read(cache, *args, **kwargs)
        return states[0]

    def selective(*args: Any, **kwargs: Any) -> Any:
        return selective_scan(*args, initial_state=states[0], **kwargs)

    def captured(own: Callable[..., Any], scan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (
            scan(*args, **kwargs) if torch.compiler.is_exporting() else own(*args, **kwargs)
        )

    replaced: list[tuple[Any, str, Any, Any]] = [(Cache, "get_recurrent_state", read, remembered)]
    for code in {sys.modules[type(module).__module__] for module in model.modules()}:
        for name, own in vars(code).items():
            if name in _SCANS:
                replaced.append((code, name, own, captured(own, _SCANS[name])))
            elif name == "mamba_selective_scan":
                replaced.append((code, name, own, selective))
    for owner, name, _, new in replaced:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, own, _ in replaced:
            setattr(owner, name, own)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **other: Any,
) -> tuple[Tensor, Tensor]:
    """query, key [B, T, heads, K], value [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H];
    H is a multiple of heads. Returns [B, T, H, V] and the last state [B, H, K, V]."""
    groups = value.shape[2] // key.shape[2]
    query, key = (one.float().repeat_interleave(groups, dim=2) for one in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (
            one * ((one * one).sum(-1, keepdim=True) + _EPSILON).rsqrt() for one in (query, key)
        )
    query = query * key.shape[-1] ** -0.5
    decay = g.float().exp()
    decay = decay if decay.dim() == 4 else decay[..., None]
    if initial_state is None:
        batch, _, heads, width = value.shape
        initial_state = key.new_zeros(batch, heads, key.shape[3], width)

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, d, b = token
        state = state * d[..., None]
        change = (v - (k[:, :, None] @ state)[:, :, 0]) * b[..., None]
        state = state + k[..., None] * change[:, :, None]
        return state, (q[:, :, None] @ state)[:, :, 0]

    state, found = _over_tokens(step, initial_state, query, key, value.float(), decay, beta.float())
    return found.to(value.dtype), state


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **other: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Of Mamba 2: x [B, T, H, P], dt [B, T, H], A [H], B and C [B, T, groups, N]; D [H]. Returns
    [B, T, H, P], and the last state [B, H, P, N] if it is asked for."""
    heads = x.shape[2]
    dt = _steps(dt, dt_bias, softplus=dt_softplus).clamp(*dt_limit)
    B, C = (one.float().repeat_interleave(heads // one.shape[2], dim=2) for one in (B, C))
    x = x.float()
    if initial_states is None:
        initial_states = x.new_zeros(x.shape[0], heads, x.shape[3], B.shape[3])

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        d, u, b, c = token
        state = state * d[..., None, None] + u[..., None] * b[:, :, None]
        return state, (state @ c[..., None])[..., 0]

    state, found = _over_tokens(step, initial_states, (A * dt).exp(), x * dt[..., None], B, C)
    found = found if D is None else found + x * D[:, None]
    return (found, state) if return_final_states else found


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    initial_state: Tensor | None = None,
    **other: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Of Mamba: x, dt and the gate z [B, I, T], A [I, N], B and C [B, N, T], D [I]. Returns
    [B, I, T], and the last state [B, I, N] if it is asked for."""
    from torch.nn.functional import silu

    u, dt, B, C = (one.transpose(1, 2).float() for one in (x, dt, B, C))
    dt = _steps(dt, delta_bias, softplus=delta_softplus)
    if initial_state is None:
        initial_state = u.new_zeros(u.shape[0], *A.shape)

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        d, u, b, c = token
        state = state * (d[..., None] * A).exp() + (d * u)[..., None] * b[:, None]
        return state, (state @ c[..., None])[..., 0]

    state, found = _over_tokens(step, initial_state, dt, u, B, C)
    found = found.transpose(1, 2)
    found = found if D is None else found + x * D[:, None]
    found = found if z is None else found * silu(z)
    return (found, state) if return_last_state else found


_SCANS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kimi_delta_attention": gated_delta_rule,
    "mamba2_chunk_scan": chunk_scan,
}


def _steps(dt: Tensor, bias: Tensor | None, *, softplus: bool) -> Tensor:
    """Δ [B, T, …], positive."""
    from torch.nn import functional

    dt = dt.float() if bias is None else dt.float() + bias.float()
    return functional.softplus(dt) if softplus else dt


def _over_tokens(
    step: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, Tensor]],
    state: Tensor,
    *tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """`step` for each token of [B, T, …] tensors, in order: the last state, and what it returns as
    [B, T, …]."""
    import torch
    from torch._higher_order_ops.scan import scan

    times = tuple(one.transpose(0, 1) for one in tokens)
    if torch.compiler.is_exporting():
        state, found = scan(step, state, times)
        return state, found.transpose(0, 1)
    rows = []
    for token in zip(*times, strict=True):
        state, row = step(state, token)
        rows.append(row)
    return state, torch.stack(rows, dim=1)
