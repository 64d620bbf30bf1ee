"""A step as a typed value: its inputs and parameters, and its result.

A step is a frozen dataclass. Its class has its identity (name, version, tools). A field is one of
three kinds:

    graph: StepInput                an input, from the store or a staged file; the key has its
                                    digest. `Mapping[str, StepInput]` takes all other inputs
    batch: int | None               a parameter, in the key as JSON
    memory: int = beside_the_key()  a setting that does not change the result, not in the key

A parameter with its default value is not in the key, so a new parameter does not change the keys of
existing entries. `spread()` adds the fields of a dataclass to the parameters. The work is
`run(step, out, progress)` of the module of the same name in the package `bodies`, which only a
worker imports.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, Union, get_args, get_origin

from optkit.facts.codec import hints, read, to_json

Progress = Callable[[str, float], None]
"""`progress(what, fraction)` with fraction in [0, 1]."""


class StepInput(Protocol):
    """An input of a step: the result of another step, or a staged foreign file."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> str: ...


class Folder(StepInput, Protocol):
    """The files of a step: an Entry of the store, or a PlannedResult in a rehearsal."""

    @property
    def meta(self) -> Mapping[str, object]: ...

    @property
    def files(self) -> Mapping[str, str]: ...

    def file(self, name: str) -> Path: ...


@dataclass(frozen=True)
class Foreign:
    """An input that no step produced: a staged file or folder, with its digest in the store and its
    path; an input of a step in its worker; or only its digest."""

    path: Path = Path("/nonexistent")
    digest: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        return self.path / name


@dataclass(frozen=True)
class PlannedResult(Foreign):
    """The result of a step that has not run, in a rehearsal. It has no digest and no files."""


def beside_the_key(default: object = MISSING, *, name: str | None = None) -> Any:
    """A field that the worker needs but the key does not contain."""
    return field(default=default, metadata={"beside": True, "name": name})


def named(name: str, default: object = MISSING) -> Any:
    """A field whose name in the key differs from its name in the class."""
    return field(default=default, metadata={"name": name})


def always(default: object) -> Any:
    """A fact that is written even if it has its default value."""
    return field(default=default, metadata={"always": True})


def spread(default: object = MISSING) -> Any:
    """A dataclass whose fields are parameters of the step; None: these parameters are absent."""
    return field(default=default, metadata={"spread": True})


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step: the files of `folder`, and facts about them, which are the fields.

    For a step that has not run (in a rehearsal), a fact has its default value; a fact without a
    default is unknown, and reading it is an AttributeError.
    """

    folder: Folder = field(default=Foreign(), repr=False, compare=False)

    @property
    def planned(self) -> bool:
        """Whether the step has not run, because this is a rehearsal."""
        return isinstance(self.folder, PlannedResult)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def digest(self) -> str:
        return self.folder.digest

    @property
    def files(self) -> Mapping[str, str]:
        """Relative name → sha256."""
        return self.folder.files

    @property
    def meta(self) -> Mapping[str, object]:
        """The facts in the form of the store."""
        return self.folder.meta

    def file(self, name: str) -> Path:
        return self.folder.file(name)

    def to_json(self) -> dict[str, object]:
        """The facts as JSON, in the form of the store."""
        return _written(self, _facts(type(self)))

    @classmethod
    def of(cls, folder: Folder) -> Self:
        """The result from its folder in the store, or the result of a step that has not run."""
        result = object.__new__(cls)
        facts = _facts(cls)
        values = {**_defaults(facts), **_read(cls, facts, folder.meta), "folder": folder}
        for name, value in values.items():
            object.__setattr__(result, name, value)
        return result


R = TypeVar("R", bound=StepResult)
R_co = TypeVar("R_co", bound=StepResult, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Step(Generic[R_co]):
    """Base of all steps, see above. Raise `version` if a step gives another result for the same
    inputs; `tools`: the distributions whose versions are part of the step's identity.

    `stays`: the default of `shares_worker`.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    tools: ClassVar[tuple[str, ...]] = ()
    stays: ClassVar[bool] = False

    @property
    def shares_worker(self) -> bool:
        """Whether the step runs no foreign code and leaves nothing behind, so that the next step
        may use its worker."""
        return self.stays

    @property
    def limit_seconds(self) -> float:
        """The longest time that the step may take if the user sets no limit; 0: the usual limit.
        A step with such a limit takes so different times that earlier ones predict nothing."""
        return 0.0

    @property
    def inputs(self) -> dict[str, StepInput]:
        """The inputs by role."""
        inputs: dict[str, StepInput] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if _kind(type(self), each) == "inputs":
                inputs |= value
            elif _kind(type(self), each) == "input" and value is not None:
                inputs[_name(each)] = value
        return inputs

    @property
    def params(self) -> dict[str, object]:
        """The parameters in the key, as JSON."""
        return _written(self, _of_kind(type(self), "param"))

    @property
    def beside(self) -> dict[str, object]:
        """The settings for the worker that are not in the key, as JSON."""
        return _written(self, _of_kind(type(self), "beside"))

    @classmethod
    def of(cls, inputs: Mapping[str, Path], params: Mapping[str, object]) -> Self:
        """The step in the worker, from the paths of its inputs and its other fields."""
        roles = {_name(each): each.name for each in _of_kind(cls, "input")}
        # in their order, which is the order of the parts of a divided step
        others = {role: Foreign(path) for role, path in inputs.items() if role not in roles}
        values = _read(cls, [*_of_kind(cls, "param"), *_of_kind(cls, "beside")], params)
        values |= {roles[role]: Foreign(inputs[role]) for role in roles if role in inputs}
        return cls(**values, **{each.name: others for each in _of_kind(cls, "inputs")})

    def run(self, out: Path, progress: Progress) -> StepResult:
        """Do the work, in a worker: write files into the folder `out`, and return the facts as the
        result."""
        package, _, module = type(self).__module__.rpartition(".")
        result: StepResult = import_module(f"{package}.bodies.{module}").run(self, out, progress)
        return result

    def result(self, folder: Folder) -> R_co:
        """The typed result of this step, from its folder."""
        bases = [base for own in type(self).__mro__ for base in vars(own).get("__orig_bases__", ())]
        (kind,) = {
            get_args(base)[0]
            for base in bases
            if isinstance(get_origin(base), type)
            and issubclass(get_origin(base), Step)
            and isinstance(get_args(base)[0], type)
        }
        result: R_co = kind.of(folder)
        return result


@dataclass(frozen=True, kw_only=True)
class Resumes:
    """A step that can continue after a kill: `checkpoint` is a folder outside the folder of the
    step, with the state of the killed run."""

    checkpoint: Path | None = beside_the_key(None)

    def resuming(self, checkpoint: Path) -> Self:
        return replace(self, checkpoint=checkpoint)


@dataclass(frozen=True, kw_only=True)
class Shards(Resumes):
    """A step that can do its work in parts: with `shard` (i, n) it does the i-th of n parts, which
    may be empty. With the results of all parts as inputs, `parts` by the roles shard-0, shard-1, …,
    it merges them, with the bits of a single run."""

    shard: tuple[int, int] | None = beside_the_key(None)
    parts: Mapping[str, StepInput] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunsCode:
    """A step that may run the user's Python, on this machine only (`optkit.ground.execute.runner`).

    `own`: the code is optkit's own. `depends`: the digest of what the user declares that the code
    depends on; None: nothing is declared, and the code runs in every command. `variables`: those of
    the environment that are declared; the code gets them. `home`: the folder to which the user's
    paths refer."""

    own: bool = beside_the_key(False)
    depends: str | None = beside_the_key(None)
    variables: tuple[str, ...] = beside_the_key(())
    home: str = beside_the_key("")

    @property
    def runs_code(self) -> bool:
        """Whether this step runs in every command, because nobody knows what its code depends
        on."""
        return not self.own

    @property
    def here(self) -> bool:
        """Whether it needs code or files that only this machine has."""
        return self.runs_code


def _kind(cls: type, each: Field[object]) -> str:
    """ "input", "inputs" (by role), "beside" (not in the key) or "param"."""
    (kind, *_) = _members(hints(cls)[each.name])
    told = "beside" if each.metadata.get("beside") else "param"
    if get_origin(kind) is not None:
        values = get_args(kind)
        return "inputs" if values and _is_input(values[-1]) else told
    return "input" if _is_input(kind) else told


def _members(annotation: object) -> Sequence[object]:
    """The members of a union without None; for another annotation, this annotation alone."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    return [member for member in get_args(annotation) if member is not type(None)]


def _is_input(kind: object) -> bool:
    return kind in (StepInput, Folder) or (isinstance(kind, type) and issubclass(kind, StepResult))


def _of_kind(cls: type[Step[StepResult]], kind: str) -> list[Field[object]]:
    return [each for each in fields(cls) if _kind(cls, each) == kind]


def _facts(cls: type[StepResult]) -> list[Field[object]]:
    return [each for each in fields(cls) if each.name != "folder"]


def _name(each: Field[object]) -> str:
    return each.metadata.get("name") or each.name


def _default(each: Field[object]) -> object:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _defaults(known: Sequence[Field[object]]) -> dict[str, object]:
    values = {each.name: _default(each) for each in known}
    return {name: value for name, value in values.items() if value is not MISSING}


def _written(owner: object, known: Sequence[Field[object]]) -> dict[str, object]:
    """Fields as JSON, without those that have their default value."""
    data: dict[str, object] = {}
    for each in known:
        value = getattr(owner, each.name)
        if value == _default(each) and not each.metadata.get("always"):
            continue
        if each.metadata.get("spread"):
            data |= _written(value, fields(value))
        else:
            data[_name(each)] = to_json(value)
    return data


def _read(
    cls: type, known: Sequence[Field[object]], data: Mapping[str, object]
) -> dict[str, object]:
    """The values of the fields that are in the JSON."""
    values: dict[str, object] = {}
    for each in known:
        kind = hints(cls)[each.name]
        if each.metadata.get("spread"):
            value = _gathered(kind, data)
            values |= {} if value is None else {each.name: value}
        elif _name(each) in data:
            values[each.name] = read(kind, data[_name(each)])
    return values


def _gathered(kind: object, data: Mapping[str, object]) -> object:
    """An object of the first dataclass in `kind` of which all fields are in the JSON or have
    defaults."""
    for member in _members(kind):
        assert isinstance(member, type)
        known = fields(member)
        values = _read(member, known, data)
        if all(each.name in values or _default(each) is not MISSING for each in known):
            return member(**values)
    return None
