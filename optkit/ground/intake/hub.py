"""Downloads a model from the Hugging Face hub: only data files, into the cache of the hub."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.ground.intake.model_folder import COMPANIONS, INDEX


def download(name: str, *, code: bool = False) -> Path:
    """Download new files of the model `name` ("org/name") and return its folder.

    code: download also its Python files. Without a connection, the folder of an earlier call is
    returned.

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
        problem, hint = "its owner must grant access", "accept its terms on the hub, then log in"
        raise InputRefused(problem, where=name, hint=f"{hint}: hf auth login") from error
    except errors.RepositoryNotFoundError as error:
        raise InputRefused(
            "there is no such folder, and no public model of this name on the hub",
            where=name,
            hint="check the name; a private model needs `hf auth login`",
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputRefused(
            f"there is no such folder, and the download failed: {str(error).splitlines()[0]}",
            where=name,
            hint="check the connection, or copy the folder of the model here and give its path",
        ) from error
