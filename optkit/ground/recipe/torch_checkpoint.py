"""A checkpoint that torch saved is a pickle, which optkit never loads. This module writes the lines
that convert its weights to safetensors, for users who trust the file."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
"""File name extensions of checkpoints."""

_MODULES = ("torch.nn.modules.", "ultralytics.")
_MAX_BYTES = 64 << 20  # of the pickle, which contains no tensors


def conversion(path: str) -> tuple[str, str]:
    """Two lines of Python, and the file that they write beside the checkpoint. They take the
    state_dict from a training checkpoint (`state_dict` or `model`, next to the optimizer's state)
    and remove the prefix of DistributedDataParallel and torch.compile from its names."""
    new = _beside(path, ".safetensors")
    code = (
        "import torch, safetensors.torch as st; "
        f"c = torch.load({path!r}, map_location='cpu', weights_only=True)\n"
        "s = c.get('state_dict', c.get('model', c)); "
        "st.save_file({k.removeprefix('module.').removeprefix('_orig_mod.'): v.clone() "
        f"for k, v in s.items()}}, {new!r})"
    )
    return code, new


def loader(path: str) -> tuple[str, str] | None:
    """Lines of a Python file with a function `create` that loads the module of a checkpoint, and a
    new file for them beside it. None if it contains no module. Loading one runs code of the file,
    so `torch.load(weights_only=True)` refuses it."""
    classes = _classes(Path(path))
    if not any(name.startswith(_MODULES) for name in classes):
        return None
    full = str(Path(path).resolve())
    if any(name.startswith("ultralytics.") for name in classes):
        lines = ultralytics(full)
    else:
        lines = (
            "import torch\ndef create():\n"
            f"    saved = torch.load({full!r}, map_location='cpu', weights_only=False)\n"
            "    return (saved['model'] if isinstance(saved, dict) else saved).float()"
        )
    return lines, _beside(str(Path(path).with_suffix("")) + "_model.py", ".py")


def ultralytics(named: str) -> str:
    """Lines of a Python file with a function `create` that returns a model of Ultralytics."""
    return f"from ultralytics import YOLO\ndef create():\n    return YOLO({named!r}).model"


def _classes(path: Path) -> set[str]:
    """The names "module class" in the pickle of a checkpoint, which is not loaded. Empty if the
    file is not one of torch's zip files."""
    if not path.is_file():  # a pipe would wait for a writer
        return set()
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if entry.file_size > _MAX_BYTES:
                return set()
            return {
                str(argument)
                for code, argument, _ in pickletools.genops(archive.read(entry))
                if code.name == "GLOBAL"
            }
    except (OSError, StopIteration, ValueError, RuntimeError, zipfile.BadZipFile):
        return set()


def without_prefix(path: str, prefix: str) -> tuple[str, str]:
    """Python code that writes the tensors of a safetensors file without a prefix in their names,
    and the new file, which lies beside the old one."""
    new = str(Path(path).with_name(f"{Path(path).stem}-renamed.safetensors"))
    code = (
        f"from safetensors.torch import load_file, save_file; s = load_file({path!r})\n"
        f"save_file({{k.removeprefix({prefix!r}): v for k, v in s.items()}}, {new!r})"
    )
    return code, new


def arrays(path: str, name: str) -> tuple[str, str]:
    """Two lines of Python that write the tensors of a file of torch.save as an .npz, and this new
    file, which lies beside the old one. The tensors of a dict keep their names, and a single tensor
    gets `name`."""
    new = _beside(path, ".npz")
    code = (
        f"import numpy, torch; t = torch.load({path!r}, map_location='cpu', weights_only=True)\n"
        f"numpy.savez({new!r}, **{{k: v.numpy() for k, v in "
        f"(t if isinstance(t, dict) else {{{name!r}: t}}).items()}})"
    )
    return code, new


def _beside(path: str, suffix: str) -> str:
    """A file with this suffix beside another one; not one that exists, so that it is not lost."""
    old = Path(path)
    new = old.with_suffix(suffix) if old.name else old / f"weights{suffix}"  # "." is a folder
    return str(new.with_stem(f"{new.stem}-converted") if new.exists() else new)
