"""Artifacts whose graph returns its inputs: with any signature, and in random fleets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import TensorInfo, size_of
from optkit.ground.artifact import Artifact, Manifest, write
from optkit.ground.devices import targets
from optkit.ground.store import digest_json
from optkit.road.packaging import formats
from tests.packaging import tiny

DATA = np.arange(16, dtype=np.float32)
DTYPES = ("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool")


def graph(infos: Sequence[TensorInfo], location: str | None = None) -> bytes:
    """Each input is an output, as "of " and its name. `location`: a file with a weight."""
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(info.dtype)) for info in infos]
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{prefix}{info.name}", kind, info.shape)
         for info, kind in zip(infos, types, strict=True)]
        for prefix in ("", "of ")
    )  # fmt: skip
    nodes = [helper.make_node("Identity", [info.name], [f"of {info.name}"]) for info in infos]
    weights = []
    if location is not None:
        weight = numpy_helper.from_array(DATA, "weight")
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "64")):
            weight.external_data.add(key=key, value=value)
        weights.append(weight)
        nodes.append(helper.make_node("Identity", ["weight"], ["of weight"]))
        outputs.append(helper.make_tensor_value_info("of weight", TensorProto.FLOAT, DATA.shape))
    body = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(body, opset_imports=opset, ir_version=10).SerializeToString())


X = (TensorInfo("x", "float32", ("batch", 4)),)


def artifact(
    out: Path,
    target: str,
    precision: str = "int8",
    inputs: tuple[TensorInfo, ...] = X,
    location: str | None = None,
    content: dict[str, Path | bytes] | None = None,
) -> Artifact:
    outputs = tuple(TensorInfo(f"of {info.name}", info.dtype, info.shape) for info in inputs)
    manifest = Manifest(
        name=f"net-{target}-{precision}", target=target, precision=precision,
        digest=digest_json([target, precision]), recipe=tiny.RECIPE, inputs=inputs,
        outputs=outputs, versions={}, result=tiny.result(target, precision).to_json(),
    )  # fmt: skip
    files: dict[str, Path | bytes] = {"model.onnx": graph(inputs, location)}
    if location is not None:
        files[location] = DATA.tobytes()
    return write(out, manifest, files | (content or {}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but optkit's own document."""
    found = (file for file in folder.rglob("*") if file.is_file() and file.name != formats.MARKER)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


@dataclass(frozen=True)
class Generated:
    """A random fleet with a random signature."""

    targets: tuple[tuple[str, str], ...]  # with precisions
    inputs: tuple[TensorInfo, ...]
    location: str | None

    @classmethod
    def draw(cls, draw: random.Random) -> Generated:
        names = [target.name for target in targets() if target.backends]
        chosen = draw.sample(names, draw.randint(1, 5))
        dims = (1, 2, 3, "batch", "sequence", "höhe", "past + new")
        inputs = tuple(
            TensorInfo(
                draw.choice(("x", "input/ids", "Bild:0", "α", "a.b[0]")) + f"_{at}",
                draw.choice(DTYPES),
                tuple(draw.choice(dims) for _ in range(draw.randint(0, 4))),
            )
            for at in range(draw.randint(1, 4))
        )
        location = draw.choice((None, "model.onnx.data", "weights/part 1.bin"))
        precisions = [draw.choice(sorted(PRECISIONS)) for _ in chosen]
        return cls(tuple(zip(chosen, precisions, strict=True)), inputs, location)

    def artifacts(self, out: Path) -> list[Artifact]:
        return [artifact(out, *pair, self.inputs, self.location) for pair in self.targets]

    def feed(self, seed: int) -> dict[str, np.ndarray]:
        sizes = {"batch": 2, "sequence": 3, "höhe": 1, "past": 0, "new": 2}
        rng = np.random.default_rng(seed)
        shapes = {info.name: [size_of(dim, sizes) for dim in info.shape] for info in self.inputs}
        return {
            info.name: rng.integers(0, 2, shapes[info.name]).astype(info.dtype)
            for info in self.inputs
        }
