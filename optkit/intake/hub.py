"""Brings a model from the Hugging Face hub: only files that are data, into the hub's own cache."""

from __future__ import annotations

from pathlib import Path

from optkit.errors import InputRefused, ToolchainMissing
from optkit.intake.folder import COMPANIONS, INDEX


def download(name: str, *, code: bool = False) -> Path:
    """The folder of `name` ("org/name"), fetched as far as it is new; `code`: its Python files too.
    Without a connection, what an earlier call left.

    Raises InputRefused (no such model, no access, no connection), ToolchainMissing.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise ToolchainMissing(
            f"huggingface_hub cannot be imported: {error}",
            where=name,
            hint="pip install 'optkit[hf]'",
        ) from error
    patterns = ["*.safetensors", INDEX, *COMPANIONS, *(["*.py"] if code else [])]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except errors.GatedRepoError as error:
        problem, hint = "access to it must be granted", "accept its terms on the hub, then log in"
        raise InputRefused(problem, where=name, hint=f"{hint}: hf auth login") from error
    except errors.RepositoryNotFoundError as error:
        raise InputRefused(
            "neither a folder here nor a model on the hub (or a private one)",
            where=name,
            hint="check the name; a private model needs `hf auth login`",
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputRefused(
            f"no folder here, and the hub gives nothing: {str(error).splitlines()[0]}",
            where=name,
            hint="check the connection, or copy the model's folder here and name that",
        ) from error
