from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optkit.data.spool_writer import SpoolInfo
from optkit.execute.reads import Record
from optkit.execute.step import ReadsCode, Result, Step, always, beside_the_key, named
from optkit.tensors import InputSpec


@dataclass(frozen=True, kw_only=True)
class Samples(Result):
    """Spooled samples."""

    info: SpoolInfo


@dataclass(frozen=True, kw_only=True)
class Collected(Samples):
    """Samples of a source or a task. `metric`: that of the task; `scoring`: the args of all its
    functions except samples(); `agreement`: whether it compares outputs with those of the baseline;
    `whole`: the samples are of a whole encoder-decoder; `paths`: the args that are paths; `reads`:
    the dependencies of the code (`optkit.execute.reads`)."""

    metric: str | None = always(None)
    scoring: Mapping[str, object] = field(default_factory=dict, metadata={"always": True})
    agreement: bool = always(False)
    whole: bool = always(False)
    paths: tuple[str, ...] = always(())
    warnings: tuple[str, ...] = always(())
    reads: Record = always(Record())


@dataclass(frozen=True, kw_only=True)
class Collect(ReadsCode, Step[Collected]):
    """Run a sample source or a task, check the samples that it yields against the inputs, and spool
    them.

    `what` and `function` name it, `args` are its arguments; `at`: where those of them are that name
    a file or a folder, so that recipes in two folders with the same relative path do not share what
    it names. `whole`, for one part of an
    encoder-decoder: the inputs of the whole model; the source gets them and may yield samples for
    them. `optional`: axes that may be empty. `path`: the file of the source; `where`: the place
    that error messages name; `folders`: arg → the folder to which its relative path refers;
    `model`: the folder of the model's tokenizer and processor; `assets`: the files of this folder.
    """

    name = "collect"
    version = 8
    tools = ("numpy", "safetensors")

    limit: int | None
    function: str
    assets: Mapping[str, str] = field(default_factory=dict)
    whole: tuple[InputSpec, ...] = ()
    what: str
    args: Mapping[str, object]
    at: Mapping[str, str] = field(default_factory=dict)
    specs: tuple[InputSpec, ...] = named("inputs")
    labelled: bool
    optional: tuple[str, ...]
    path: Path = beside_the_key()
    where: str = beside_the_key(name="named")
    memory: int = beside_the_key()
    folders: Mapping[str, Path] = beside_the_key()
    model: Path | None = beside_the_key(None)
