"""A checkpoint that torch saved is a pickle, which is never loaded here: the lines that turn its
weights into safetensors, for whoever trusts the file."""

from __future__ import annotations

from pathlib import PurePath

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
"""What checkpoints are called."""


def conversion(path: str) -> str:
    """Two lines of Python. They take the state_dict out of a training checkpoint (`state_dict` or
    `model` beside the optimizer's state) and the prefix of DistributedDataParallel and
    torch.compile off its names."""
    return (
        "import torch, safetensors.torch as st; "
        f"c = torch.load({path!r}, map_location='cpu', weights_only=True)\n"
        "s = c.get('state_dict', c.get('model', c)); "
        "st.save_file({k.removeprefix('module.').removeprefix('_orig_mod.'): v.clone() "
        f"for k, v in s.items()}}, {PurePath(path).with_suffix('.safetensors').name!r})"
    )


def without_prefix(path: str, prefix: str) -> str:
    """Python that writes a safetensors file again without a prefix of its names."""
    return (
        f"from safetensors.torch import load_file, save_file; s = load_file({path!r})\n"
        f"save_file({{k.removeprefix({prefix!r}): v for k, v in s.items()}}, {path!r})"
    )
