from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optkit.facts.tensors import InputSpec
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.execute.step import RunsCode, Step, StepResult, always, beside_the_key, named


@dataclass(frozen=True, kw_only=True)
class Samples(StepResult):
    """Spooled samples."""

    info: SpoolInfo


@dataclass(frozen=True, kw_only=True)
class CollectedSamples(Samples):
    """Samples of a source or a task. `metric`: that of the task; `scoring`: the args of all its
    functions except samples(); `agreement`: whether it compares outputs with those of the baseline;
    `loops`: whether it runs the graph itself; `whole`: the samples are of a whole encoder-decoder;
    `paths`: the args that are paths."""

    metric: str | None = always(None)
    scoring: Mapping[str, object] = field(default_factory=dict, metadata={"always": True})
    agreement: bool = always(False)
    loops: bool = False
    whole: bool = always(False)
    paths: tuple[str, ...] = always(())
    warnings: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class Collect(RunsCode, Step[CollectedSamples]):
    """Run a sample source or a task, check the samples that it yields against the inputs, and spool
    them.

    `what` and `function` name it, `args` are its arguments. For a source of optkit, `content` has
    the digests of its file and of the files and folders that its args name, and `versions` those of
    the libraries that read them. `whole`, for one part of an encoder-decoder: the inputs of the
    whole model; the source gets them and may yield samples for them. `optional`: axes that may be
    empty. `path`: the file of the source; `where`: the place that error messages name; `folders`:
    arg → the folder to which its relative path refers; `model`: the folder of the model's tokenizer
    and processor; `assets`: the files of this folder.
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
    content: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    specs: tuple[InputSpec, ...] = named("inputs")
    labelled: bool
    optional: tuple[str, ...]
    path: Path = beside_the_key()
    where: str = beside_the_key(name="named")
    memory: int = beside_the_key()
    folders: Mapping[str, Path] = beside_the_key()
    model: Path | None = beside_the_key(None)

    @property
    def runs_code(self) -> bool:
        return not self.content

    @property
    def here(self) -> bool:
        return True
