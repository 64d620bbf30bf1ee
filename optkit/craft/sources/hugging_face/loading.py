"""Loads a staged Hugging Face folder as a model, and accounts for every weight.

transformers only warns if weights are missing, unused or of another shape. optkit refuses a model
with random layers. Only whole heads that the class does not have may be unused, as in a checkpoint
for another task.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from optkit.craft.sources import export_failures, toolchain
from optkit.facts.errors import InputRefused, unknown_name

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

GENERATION = "text-generation"


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, float32. `task`: None if its class belongs to no known task."""

    model: PreTrainedModel
    task: str | None
    warnings: tuple[str, ...] = ()


class _LoadingInfo(TypedDict):
    """transformers' report of weights that do not fit."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[str, torch.Size, torch.Size]]
    """Name, shape in the file, shape in the model."""


def load(folder: Path, task: str | None, *, trusted: bool) -> LoadedModel:
    """The model in `folder`, of the class that its config.json or `task` names.

    Raises InputRefused (an unknown architecture, weights that do not fit), UsageError (an unknown
    task), ToolchainMissing.
    """
    toolchain.require_hugging_face()
    with toolchain.quiet():
        config, cls, task = class_of(folder, task, trusted=trusted)
        model, info = _pretrained(cls, config, folder, trusted=trusted)
    model.train(False).requires_grad_(False)  # torch chooses other kernels in training mode
    return LoadedModel(model, task, _accounted(model, info, str(folder)))


def class_of(
    folder: Path, task: str | None, *, trusted: bool
) -> tuple[PreTrainedConfig, type[PreTrainedModel], str | None]:
    """The configuration in `folder`, the class that it or `task` names, and the task of the class.

    Raises InputRefused (an unknown architecture), UsageError (an unknown task).
    """
    config = _config(folder, trusted=trusted)
    if task is None and _is_of_sentence_transformers(folder):
        task = "feature-extraction"
    cls, task = _class(config, task, str(folder), trusted=trusted)
    return config, cls, task


def _config(folder: Path, *, trusted: bool) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        return config
    # OSError, ValueError, KeyError, and other exceptions because of a bad value
    except Exception as error:
        if not trusted and _has_code(folder):
            raise InputRefused(
                "the model contains Python code, which optkit does not run without permission",
                where=str(folder / "config.json"),
                hint="read the code; if you trust it, build with --trust-remote-code",
            ) from error
        raise InputRefused(
            f"config.json is not understood: {export_failures.first_line(error)}",
            where=str(folder / "config.json"),
            hint="a newer transformers may know the model; a model with its own code needs "
            "--trust-remote-code",
        ) from error


def _has_code(folder: Path) -> bool:
    """Whether config.json names classes in Python files of the folder."""
    try:
        return bool(json.loads((folder / "config.json").read_bytes()).get("auto_map"))
    except (ValueError, AttributeError):
        return False


def _is_of_sentence_transformers(folder: Path) -> bool:
    """Whether sentence-transformers saved the folder. It keeps the class of the checkpoint that was
    trained further in config.json, often with a head whose weights it does not save."""
    try:
        listed = json.loads((folder / "modules.json").read_bytes())
        return any(str(one["type"]).startswith("sentence_transformers.") for one in listed)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _class(
    config: PreTrainedConfig, task: str | None, where: str, *, trusted: bool
) -> tuple[type[PreTrainedModel], str | None]:
    """The class to load, and its task. It is the class in config.json if that fits the task,
    otherwise the Auto class of the task."""
    from optimum.exporters.tasks import TasksManager

    named = _named_class(config, trusted=trusted)
    its_task = None if named is None else _task_of(named)
    if task is None:
        if named is None:
            raise _no_class(config, where)
        return named, its_task
    task = TasksManager.map_from_synonym(task)
    if task not in TasksManager.get_all_tasks():
        raise unknown_name("task", task, TasksManager.get_all_tasks(), where="--task")
    if named is not None and task == its_task:
        return named, task
    try:
        return TasksManager.get_model_class_for_task(task, model_type=config.model_type), task
    except (KeyError, ValueError) as error:
        raise InputRefused(
            f"no class of {config.model_type} is for {task}", where=where, hint=_OTHER_TASK
        ) from error


def _named_class(config: PreTrainedConfig, *, trusted: bool) -> type[PreTrainedModel] | None:
    """The class in config.json: one of transformers, or one in the folder's own code."""
    import transformers

    names = list(config.architectures or ())
    classes: list[type[PreTrainedModel] | None]
    classes = [getattr(transformers, name, None) for name in names]
    if not any(classes) and trusted:  # behind an Auto class
        autos = (name for name in _auto_map(config) if name.startswith("AutoModel"))
        classes = [getattr(transformers, name, None) for name in autos][:1]
    return next(filter(None, classes), None)


def _auto_map(config: PreTrainedConfig) -> Mapping[str, object]:
    return getattr(config, "auto_map", None) or {}


def _no_class(config: PreTrainedConfig, where: str) -> InputRefused:
    names = config.architectures
    named = f"{names[0]}, which transformers lacks" if names else "no class"
    return InputRefused(
        f"config.json names {named}",
        where=where,
        hint="its class is in the Python code of the folder: if you trust it, build "
        "with --trust-remote-code"
        if _auto_map(config)
        else "install a newer transformers, or name the task, e.g. --task text-classification",
    )


def _task_of(cls: type[PreTrainedModel]) -> str | None:
    from optimum.exporters.tasks import TasksManager

    try:
        return str(TasksManager.infer_task_from_model(cls))
    except ValueError:  # a part of a model, such as one tower
        return None


def _pretrained(
    cls: type[PreTrainedModel], config: PreTrainedConfig, folder: Path, *, trusted: bool
) -> tuple[PreTrainedModel, _LoadingInfo]:
    import torch

    try:
        loaded = cls.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=trusted,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `_accounted` reports it together with the rest
            output_loading_info=True,
        )
    except Exception as error:  # a class that does not fit this config, or an invalid value
        raise InputRefused(
            f"{cls.__name__} cannot be loaded from it: {export_failures.first_line(error)}",
            where=str(folder),
            hint=_OTHER_TASK,
        ) from error
    # its annotation does not show the effect of `output_loading_info`
    return cast("tuple[PreTrainedModel, _LoadingInfo]", loaded)


def _accounted(model: PreTrainedModel, info: _LoadingInfo, where: str) -> tuple[str, ...]:
    """Warnings about the weights. Raises InputRefused unless the folder has every weight of the
    model, and every weight of the folder belongs to the model or to a head that it does not
    have."""
    left = sorted(info["unexpected_keys"])
    foreign = [key for key in left if not _is_head(model, key)]
    shapes = [
        f"{key} {list(there)}, not {list(here)}"
        for key, there, here in sorted(info["mismatched_keys"])
    ]
    parts = (
        ("the model needs", sorted(info["missing_keys"])),
        ("the model has no", foreign),
        ("of another shape are", shapes),
    )
    if problems := "; ".join(
        f"{what} {export_failures.some(names)}" for what, names in parts if names
    ):
        raise InputRefused(
            f"the weights do not fit {type(model).__name__}: {problems}",
            where=where,
            hint="config.json must describe the model that was saved beside it; " + _OTHER_TASK,
        )
    if not left:
        return ()
    return (f"weights of heads that {type(model).__name__} has not: {export_failures.some(left)}",)


def _is_head(model: PreTrainedModel, key: str) -> bool:
    """Whether an unused weight belongs to a whole part that the model does not have, outside of its
    repeated layers. An additional part there would change the function."""
    from torch import nn

    *path, _ = key.split(".")
    here: nn.Module = model
    for name in path:
        if isinstance(here, nn.ModuleList):
            return False
        inner = getattr(here, name, None)
        if not isinstance(inner, nn.Module):
            return inner is None
        here = inner
    return False


_OTHER_TASK = "another task may fit: --task"
