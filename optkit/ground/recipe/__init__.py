"""Recipes: the model and the settings of its build. Every error has the file, the line and the
nearest key."""

from __future__ import annotations

from optkit.ground.recipe.model_sections import Input, Model
from optkit.ground.recipe.recipe import DEFAULT_BATCH, Recipe, SampleRole, SampleSource, Source
from optkit.ground.recipe.resolution import requested, resolve
from optkit.ground.recipe.sections import (
    MEMORY,
    Bench,
    Calibration,
    Compiler,
    Eval,
    Gates,
    Method,
    Placement,
    Quantization,
)
from optkit.ground.recipe.shape_syntax import parse_shapes

__all__ = [
    "DEFAULT_BATCH", "MEMORY", "Bench", "Calibration", "Compiler", "Eval", "Gates", "Input",
    "Method", "Model", "Placement", "Quantization", "Recipe", "SampleRole", "SampleSource",
    "Source",
    "parse_shapes", "requested", "resolve",
]  # fmt: skip
