"""The table of Triton's releases (releases.yaml): which ONNX Runtime and TensorRT each has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_FILE = Path(__file__).with_suffix(".yaml")


class Release(BaseModel):
    """The versions in one release; None: not known. `source`: where TensorRT's was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    onnxruntime: str | None = None
    tensorrt: str | None = None
    source: str | None = None


class Table(BaseModel):
    """`opsets`: ONNX opset → the first ONNX Runtime that runs it. `releases`: oldest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    opsets: dict[int, str]
    releases: dict[str, Release]

    def first_with_opset(self, opset: int) -> str | None:
        """The oldest release whose ONNX Runtime runs a graph of this opset; None: not known."""
        wanted = next((v for able, v in sorted(self.opsets.items()) if able >= opset), None)
        if wanted is None:
            return None
        able = (
            name
            for name, release in self.releases.items()
            if release.onnxruntime and _numbers(release.onnxruntime) >= _numbers(wanted)
        )
        return next(able, None)

    def with_tensorrt(self, version: str) -> list[str]:
        """The releases that are known to have this version. An engine runs with no other version
        than the one that built it."""
        return [
            name
            for name, release in self.releases.items()
            if release.tensorrt and f"{version}.".startswith(f"{release.tensorrt}.")
        ]

    @property
    def known_tensorrt(self) -> str:
        """The known versions of TensorRT, in words."""
        known = ((name, r.tensorrt) for name, r in self.releases.items() if r.tensorrt)
        return ", ".join(f"{version} in {name}" for name, version in known)


@cache
def table() -> Table:
    from ruamel.yaml import YAML

    return Table.model_validate(YAML(typ="safe", pure=True).load(_FILE.read_text("utf-8")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
