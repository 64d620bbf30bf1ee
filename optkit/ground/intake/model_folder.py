"""Copies a Hugging Face folder: its configuration, safetensors weights, tokenizer and processor.

It takes only known data files, and Python files only if the code of the folder may run. All other
files (pickles, weights of other frameworks, training state) are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.errors import InputRefused, UnsafeFile
from optkit.facts.printable import is_text
from optkit.ground.intake.containers import PICKLES, check_weights
from optkit.ground.intake.deduplication import StoredCopies
from optkit.ground.intake.files import FileLimits, located, opened_beneath, show
from optkit.ground.intake.tree import Files, publish_tree
from optkit.ground.store import scratch, storage_errors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

COMPANIONS = (
    CONFIG, "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model", "bpe.codes", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "processor_config.json", "modules.json",
)  # fmt: skip
"""Files that are copied with a model into its artifact, if they exist."""

_SMALL = 256 << 20  # bytes of one file that is not a weight file
_INDEX_BYTES = 64 << 20
_HINT = "save it again with model.save_pretrained(folder, safe_serialization=True)"


@dataclass(frozen=True)
class StagedFolder:
    """The checked files in one folder of the store. `sha256` covers all of them."""

    path: Path
    sha256: str
    files: Files


def stage_folder(
    path: Path, store_objects: Path, *, code: bool = False, limits: FileLimits | None = None
) -> StagedFolder:
    """Copy the folder of a model into the store; `code`: also its Python files.

    Raises InputRefused (no config.json, no weights), UnsafeFile (only pickles, an invalid file, a
    link to another folder), StorageError.
    """
    with _staging(path, store_objects, limits or FileLimits()) as staging:
        staging.require(CONFIG, "the folder of a Hugging Face model has one")
        for name in COMPANIONS:
            staging.take(name)
        for name in sorted(_weights(staging)):
            staging.take_weights(name)
        for file in sorted(path.glob("*.py")) if code else ():
            staging.take(file.name)
        return staging.publish()


def stage_adapter(
    path: Path, store_objects: Path, *, limits: FileLimits | None = None
) -> StagedFolder:
    """Copy the folder of a PEFT adapter into the store. Raises the errors of `stage_folder`, and
    InputRefused if there is no such folder."""
    if not path.is_dir():
        reason = "it is no folder" if path.exists() else "no such folder"
        raise InputRefused(reason, where=str(path), hint="give the folder that PEFT has saved")
    with _staging(path, store_objects, limits or FileLimits()) as staging:
        staging.require(ADAPTER_CONFIG, "PEFT's save_pretrained writes it")
        staging.take(ADAPTER_CONFIG)
        if not staging.has(ADAPTER_WEIGHTS):
            raise _no_weights(path, ADAPTER_WEIGHTS)
        staging.take_weights(ADAPTER_WEIGHTS)
        return staging.publish()


@contextmanager
def _staging(path: Path, store_objects: Path, limits: FileLimits) -> Iterator[_Staging]:
    with scratch(store_objects.parent) as folder:
        tree = folder / "folder"
        with storage_errors(tree):
            tree.mkdir(mode=0o700)
        yield _Staging(path, tree, store_objects, limits)


class _Staging:
    """Copies the files of one folder into `tree`, and this into the store."""

    def __init__(self, path: Path, tree: Path, store_objects: Path, limits: FileLimits) -> None:
        self.path = path
        self._base = path.resolve()
        self._tree, self._objects, self._limits = tree, store_objects, limits
        self._copies = StoredCopies(store_objects)
        self._files: Files = {}

    def has(self, name: str) -> bool:
        return os.path.lexists(self._base / name)

    def require(self, name: str, hint: str) -> None:
        if not self.has(name):
            raise InputRefused(f"the folder has no {name}", where=str(self.path), hint=hint)

    def take(self, name: str) -> Path | None:
        """The copy of a small file; None if the folder has no such file."""
        return self._bring(name, _SMALL) if self.has(name) else None

    def take_weights(self, name: str) -> None:
        taken = sum(size for _, size in self._files.values())
        copy = self._bring(name, self._limits.data_bytes - taken)
        with located(self.path / name):
            check_weights(copy, limits=self._limits)

    def publish(self) -> StagedFolder:
        place, digest = publish_tree(self._tree, self._files, self._objects)
        self._copies.remember(place)
        return StagedFolder(place, digest, self._files)

    def _bring(self, name: str, limit: int) -> Path:
        where = str(self.path / name)
        if not is_text(name):
            raise UnsafeFile(
                f"the name {show(name)} is not UTF-8",
                where=str(self.path),
                hint="rename the file, or remove it if the model does not need it",
            )
        with opened_beneath(self._base, name, where=where) as source:
            self._files[name] = self._copies.bring(
                source, self._tree, name, limit_bytes=limit, where=where
            )
        return self._tree / name


def _weights(staging: _Staging) -> set[str]:
    """The names of the weight files: a single file, or the files that the index names."""
    index = staging.take(INDEX)
    if index is not None:
        return _shards(index, staging.path)
    if not staging.has(WEIGHTS):
        raise _no_weights(staging.path, WEIGHTS)
    return {WEIGHTS}


def _shards(index: Path, folder: Path) -> set[str]:
    where = str(folder / INDEX)
    try:
        with index.open("rb") as file:
            named = set(json.loads(file.read(_INDEX_BYTES))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnsafeFile(
            "it is not a valid index of weight files", where=where, hint=_HINT
        ) from error
    for name in named:
        if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
            raise UnsafeFile(
                f"it names {show(str(name))}, which is not a safetensors file of this folder",
                where=where,
                hint=_HINT,
            )
    return named


def _no_weights(folder: Path, wanted: str) -> InputRefused:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in PICKLES)
    if not pickles:
        return InputRefused(f"the folder has no {wanted}", where=str(folder), hint=_HINT)
    return UnsafeFile(
        f"the weights are a pickle ({show(pickles[0])}), which can run code when it is loaded",
        where=str(folder),
        hint=_HINT,
    )
