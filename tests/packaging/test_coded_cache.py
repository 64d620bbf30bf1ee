"""Packages of an artifact whose key-value cache has codes: formats that hold only the weights say
how their program stores its cache, and those whose programs have no such cache refuse it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import optkit
from optkit.craft.quantization.qdq.codes import Codes, same
from optkit.facts.errors import UsageError
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats
from optkit.road.packaging.decoders import Architecture, RotaryParameters, caveats, parameters
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.generation.families import PROMPTS
from tests.packaging import tiny, variants

LLAMA = Architecture(
    "llama", layers=1, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16,
    vocabulary=32, epsilon=1e-6, context=128, window=None, theta=1e4, rotation=RotaryParameters(),
)  # fmt: skip


def coded(folder: Path, dtype: str, width: int) -> Artifact:
    """An artifact that says that it is such a decoder."""
    made = tiny.artifact(folder, precision="int4")
    ids = TensorInfo("input_ids", "int64", ("batch", "sequence"))
    logits = TensorInfo("logits", "float32", ("batch", "sequence", 32))
    caches = [
        tuple(TensorInfo(f"{side}.0.{name}", dtype, ("batch", 2, axis, width)) for name in
              ("key", "value"))
        for side, axis in (("past_key_values", "past"), ("present", "all"))
    ]  # fmt: skip
    made.manifest = replace(made.manifest, inputs=(ids, *caches[0]), outputs=(logits, *caches[1]))
    return made


@pytest.mark.parametrize(
    ("dtype", "width", "program", "options"),
    [
        ("int8", 16, "llama.cpp", "--cache-type-k q8_0 --cache-type-v q8_0"),
        ("uint8", 8, "llama.cpp", "--cache-type-k q4_0 --cache-type-v q4_0"),
        ("int8", 16, "mlx-lm", "--kv-bits 8"),
        ("uint8", 8, "mlx-lm", "--kv-bits 4"),
        ("float32", 16, "llama.cpp", None),
    ],
)
def test_a_note_names_the_option_of_the_program(
    dtype: str, width: int, program: str, options: str | None, tmp_path: Path
) -> None:
    notes = caveats(coded(tmp_path, dtype, width), LLAMA, program)
    assert len(notes) == (0 if options is None else 1)
    assert options is None or options in notes[0]


@pytest.mark.parametrize(("dtype", "width"), [("int8", 16), ("uint8", 8)])
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("huggingface", "feed the key-value cache as floats"),
        ("compressed-tensors", "has a scale for each channel"),
    ],
)
def test_formats_without_such_a_cache_are_refused(
    dtype: str, width: int, form: str, reason: str, tmp_path: Path
) -> None:
    subject = PackageSubject("net", (Variant(coded(tmp_path / "net", dtype, width)),))
    with pytest.raises(UsageError, match=reason) as caught:
        formats.package(subject, form, tmp_path / "out")
    assert "quantization.kv_cache=null" in str(caught.value.hint)
    assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").iterdir()]


@pytest.mark.slow
def test_other_programs_get_the_weights_that_they_get_without_codes(tmp_path: Path) -> None:
    variants.write("llama", tmp_path / "model")
    texts = (json.dumps({"text": text * 3}) for text in PROMPTS for _ in range(4))
    (tmp_path / "texts.jsonl").write_text("\n".join(texts))
    found = {}
    for cache in (None, "int8"):
        recipe = {
            "name": "net", "model": {"path": "model"},
            "quantization": {"weights": "rtn", "kv_cache": cache},
            "calibration": {"source": "text", "args": {"path": "texts.jsonl"}},
        }  # fmt: skip
        (tmp_path / "optkit.yaml").write_text(json.dumps(recipe))
        made = optkit.build(
            recipe=tmp_path / "optkit.yaml", target="cpu", precision="int4",
            out=tmp_path / str(cache), workspace=optkit.Workspace(tmp_path / "cache"),
        )  # fmt: skip
        architecture = Architecture.of(made)
        read = parameters(graph.load(made.model_path), architecture)
        found[cache] = {name: parameter.read() for name, parameter in read.items()}
        for form in ("gguf", "mlx"):
            subject = PackageSubject("net", (Variant(made),))
            written = formats.package(subject, form, tmp_path / f"{cache}-packages")
            told = [note for note in written.notes if "the cache in int8" in note]
            assert len(told) == (cache is not None)
    assert found[None].keys() == found["int8"].keys()
    for name, numbers in found[None].items():
        other, coded_weight = found["int8"][name], isinstance(numbers, Codes)
        assert same(numbers, other) if coded_weight else np.array_equal(numbers, other), name
