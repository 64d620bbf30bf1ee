"""Recipes of strangers: read or refused with the line and the column, and nothing of them runs."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import RecipeError
from optkit.ground.recipe import Recipe
from tests.figures import Figures

PLACE = re.compile(r"optkit\.yaml:[0-9]+:[0-9]+")
SECRET = "canary-5f1d0c9e"
FULL: dict[str, Any] = {
    "name": "net",
    "model": {"factory": "stranger.py:create", "weights": "weights.safetensors",
              "args": {"depth": 2}, "depends": ["data.txt"]},
    "inputs": {"image": {"dtype": "float32", "shape": ["batch", 3, 8, 8]},
               "ids": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 99]}},
    "axes": {"batch": {"min": 1, "opt": 8, "max": 32}, "seq": 16},
    "calibration": {"source": "stranger.py:samples", "samples": 64, "method": "percentile",
                    "percentile": 99.9, "batch": 4, "args": {"path": "data.txt"}},
    "quantization": {"effort": "best", "weights": "mse", "block_size": 32,
                     "nodes": {"layer*": "fp16"}, "placement": {"zero_points": True}},
    "eval": {"task": "stranger.py", "args": {"seed": 3}, "stop_early": True},
    "gates": {"max_drop": "0.5%", "max_latency_ms": 2.0, "max_bytes": 4_000_000,
              "accept": ["predicted"], "targets": {"l4": {"max_drop": "1%"}}},
    "compiler": {"workspace_bytes": 1_000_000, "optimization_level": 3, "cuda_graph": True},
    "bench": {"batches": [1, 8], "seconds": 3, "warmup_seconds": 1, "threads": 2},
}  # fmt: skip
PATHS = (
    ("model", "factory"), ("model", "weights"), ("model", "path"), ("model", "adapter"),
    ("calibration", "source"), ("calibration", "ranges"), ("eval", "task"),
)  # fmt: skip
OUTSIDE = (
    "../outside.py", "sub/../../outside.py", "/etc/passwd", "{outside}", "link.py", "~/x.py",
    "..\\outside.py", "file:///etc/passwd", "$HOME/x.py", "a\0.py", "%2e%2e/outside.py",
    "sub/../..",
)  # fmt: skip
TEXTS = (
    "$SECRET", "${{SECRET}}", "%(SECRET)s", "{{0.__class__.__init__.__globals__}}",
    "`touch canary`", "$(touch canary)", "os:system", "builtins:exec",
    "__import__('os').system('touch canary')",
    "!!python/object/apply:os.system [touch canary]", "{{{{ 7 * 7 }}}}", "\x1b[2J", "x" * 3000, "",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1e308, -0.5, [], {}, [[]], {"a": {"b": None}}, "é", "name", "batch",
)  # fmt: skip
BROKEN: tuple[Callable[[str, random.Random], str], ...] = (
    lambda text, rng: text,
    lambda text, rng: text,
    lambda text, rng: "\ufeff" + text,
    lambda text, rng: text + text,  # every key twice
    lambda text, rng: text.replace(": ", ": &a ", 1),
    lambda text, rng: text.replace(": ", ": !!python/name:os.system ", 1),
    lambda text, rng: text.replace("  ", "\t", rng.randint(1, 3)),
    lambda text, rng: text[: rng.randrange(len(text))],
    lambda text, rng: text.replace("{", "[" * 60, 1),
    lambda text, rng: f"%YAML 1.1\n---\n{text}",
    lambda text, rng: f"{text}\n---\n{text}",
    lambda text, rng: text.replace("\n", rng.choice(["\r", "\u2028", "\x00", "\n\n  "]), 1),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value)
        if isinstance(value, list) else ()
    ):  # fmt: skip
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(rng: random.Random, outside: Path) -> str:
    """The text of a recipe that is wrong in one to three places, and perhaps as a text."""
    data = copy.deepcopy(FULL)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([*places(data)])
        inner: Any = data
        for key in path[:-1]:
            inner = inner[key]
        kind = rng.randrange(5)
        if kind == 0:
            del inner[path[-1]]
        elif kind == 1 and isinstance(inner, dict):
            name = rng.choice(["x", "__class__", "<<", f"{path[-1]}s", "1", "", "é", "a.b", "on"])
            inner[name] = inner.pop(path[-1])
        else:
            texts = [one.format(outside=outside) for one in (*OUTSIDE, *TEXTS)]
            inner[path[-1]] = rng.choice([*VALUES, *texts])
    text = "".join(f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in data.items())
    if text:
        text = rng.choice(BROKEN)(text, rng)
    return text


class Project:
    """A folder with a recipe. Its code would leave a file, if anything ran or imported it."""

    def __init__(self, home: Path) -> None:
        self.home = home / "project"
        (self.home / "sub").mkdir(parents=True)
        (home / "outside.py").write_text("raise SystemExit")
        canary = f"open({str(home / 'canary')!r}, 'w')\n"
        (self.home / "stranger.py").write_text(canary)
        for name in ("weights.safetensors", "data.txt"):
            (self.home / name).touch()
        (self.home / "link.py").symlink_to(home / "outside.py")
        self.recipe = self.home / "optkit.yaml"
        self.recipe.touch()
        self.outside = home / "outside.py"
        self._home = home
        self._before = self._files()

    def read(self, text: str) -> RecipeError | None:
        """The error of this recipe; None if it is one. Both without a trace of the environment."""
        self.recipe.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            recipe = Recipe.load("optkit.yaml")
            told = json.dumps(recipe.to_json())
            error = None
        except RecipeError as refused:
            error, told = refused, f"{refused} {refused.hint}"
            assert PLACE.fullmatch(refused.where or ""), f"{refused.where}: {text}"
            assert refused.exit_code == 2
        assert SECRET not in told
        return error

    def is_as_before(self) -> bool:
        return self._files() == self._before and "stranger" not in sys.modules

    def _files(self) -> set[Path]:
        return set(self._home.rglob("*"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("SECRET", SECRET)
    made = Project(tmp_path)
    monkeypatch.chdir(made.home)
    return made


def test_the_whole_recipe_is_sound(project: Project) -> None:
    assert project.read(json.dumps(FULL)) is None


@pytest.mark.parametrize("path", PATHS, ids=str)
@pytest.mark.parametrize("value", OUTSIDE)
def test_no_path_leads_out_of_the_project(
    path: tuple[str, str], value: str, project: Project
) -> None:
    data = copy.deepcopy(FULL)
    if path[:2] in (("model", "path"), ("calibration", "ranges")):
        del data[path[0]]["factory" if path[0] == "model" else "source"]
        data["model"].pop("weights", None)
        data["model"].pop("args", None)
    text = value.format(outside=project.outside)
    data[path[0]][path[1]] = text
    assert project.read(json.dumps(data)) is not None
    assert project.is_as_before()


@pytest.mark.slow
def test_many_recipes_of_strangers(project: Project, figures: Figures) -> None:
    times, refused = figures.times(500, 10_000), 0

    before = dict(os.environ)
    for seed in range(times):
        text = changed(random.Random(seed), project.outside)
        refused += project.read(text) is not None
    assert project.is_as_before() and dict(os.environ) == before
    assert refused > times // 3
    figures.tell(
        "hostile recipes", times,
        "wrong values, names and paths, texts of shells and templates, tags, anchors, keys that "
        "occur twice, cut texts; each is read, or refused with line and column; nothing of it "
        "runs, no file appears, no variable of the environment is told",
        refused=refused,
    )  # fmt: skip
