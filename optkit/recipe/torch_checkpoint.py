"""A checkpoint that torch saved is a pickle, which optkit never loads. This module writes the lines
that convert its weights to safetensors, for users who trust the file."""

from __future__ import annotations

from pathlib import PurePath

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
"""File name extensions of checkpoints."""


def conversion(path: str) -> str:
    """Two lines of Python. They take the state_dict from a training checkpoint (`state_dict` or
    `model`, next to the optimizer's state) and remove the prefix of DistributedDataParallel and
    torch.compile from its names."""
    return (
        "import torch, safetensors.torch as st; "
        f"c = torch.load({path!r}, map_location='cpu', weights_only=True)\n"
        "s = c.get('state_dict', c.get('model', c)); "
        "st.save_file({k.removeprefix('module.').removeprefix('_orig_mod.'): v.clone() "
        f"for k, v in s.items()}}, {PurePath(path).with_suffix('.safetensors').name!r})"
    )


def without_prefix(path: str, prefix: str) -> str:
    """Python code that writes a safetensors file again, without a prefix in its names."""
    return (
        f"from safetensors.torch import load_file, save_file; s = load_file({path!r})\n"
        f"save_file({{k.removeprefix({prefix!r}): v for k, v in s.items()}}, {path!r})"
    )
