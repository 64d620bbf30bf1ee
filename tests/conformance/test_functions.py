"""Functions of torch in an exported graph, run by ONNX Runtime, are torch's over their whole range:
infinities and NaN in the same places, finite numbers to the precision of float32.

What differs is in `DIFFERS` with its places, and in the table of docs/studies/not_offered.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from optkit.craft.sources import program_to_onnx, toolchain, torch_module
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import backend
from tests.conformance.functions import ARRAYS, CASES, DIFFERS
from tests.conformance.other_functions import NOT_FUNCTIONS, NOT_TRIED, RANDOM, REFUSED

STABLE = (
    "F.logsigmoid", "log(sigmoid)", "special.log1p", "special.expm1", "special.erfc",
    "special.erfcx", "special.log_ndtr", "logaddexp", "logaddexp2", "logcumsumexp", "special.xlogy",
    "atan2", "heaviside", "angle", "floor_divide", "remainder", "clamp(min)", "clamp(max)",
    "F.group_norm", "F.binary_cross_entropy_with_logits",
)  # fmt: skip
"""Those with a translation of optkit's own, or made of them."""
DOCS = Path(__file__).resolve().parents[2] / "docs/studies/not_offered.md"


class Functions(nn.Module):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, **arrays: torch.Tensor) -> list[torch.Tensor]:
        cases = [CASES[name] for name in self.names]
        return [case.call(*(arrays[name] for name in case.arrays)) for case in cases]


def differing(names: Sequence[str], folder: Path) -> dict[str, np.ndarray]:
    """The places of each function at which its graph differs from torch, where there are any."""
    module = Functions(names)
    used = {array for name in names for array in CASES[name].arrays}
    arrays = {name: array for name, array in ARRAYS.items() if name in used}
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with torch.no_grad(), toolchain.quiet():
        expected = module(**given)
        program = torch.export.export(module, (), given)
    specs = [InputSpec(TensorInfo(n, "float32", array.shape)) for n, array in arrays.items()]
    outputs = [f"y{index}" for index in range(len(names))]
    graph.save(program_to_onnx.translate(program, specs, outputs), folder / "m.onnx")
    with backend("onnxruntime").session(folder / "m.onnx") as session:
        found = session.run(arrays)
    differ = {
        name: ~equal(values.numpy(), found[output], CASES[name].sums)
        for name, values, output in zip(names, expected, outputs, strict=True)
    }
    return {name: places for name, places in differ.items() if places.any()}


def equal(expected: np.ndarray, found: np.ndarray, sums: bool) -> np.ndarray:
    """Place by place. Of sums, relative to the largest number of the row."""
    assert (expected.shape, expected.dtype) == (found.shape, found.dtype)
    e, f = expected.astype(np.float64), found.astype(np.float64)
    allowed = 1e-5 * np.abs(e) + 1e-6
    rows = ARRAYS["rows"]
    if sums and len(e) == len(rows):
        sizes = [np.where(np.isfinite(a), np.abs(a), 0).reshape(len(rows), -1).max(1)
                 for a in (rows, e)]  # fmt: skip
        allowed += 1e-6 * np.maximum(*sizes).reshape(-1, *[1] * (e.ndim - 1))
    with np.errstate(invalid="ignore"):
        near = np.abs(e - f) <= allowed
    same: np.ndarray = (e == f) | (np.isnan(e) & np.isnan(f))
    return same | (near & np.isfinite(e) & np.isfinite(f))


def check(names: Sequence[str], folder: Path) -> None:
    """Each differs only where its entry of DIFFERS says, and an entry that is not needed fails."""
    found = differing(names, folder)
    for name, places in found.items():
        arrays = {array: ARRAYS[array] for array in CASES[name].arrays}
        assert name in DIFFERS, (name, np.argwhere(places)[:5].tolist())
        known = DIFFERS[name].places(arrays)
        known = known.reshape(*known.shape, *[1] * (places.ndim - known.ndim))
        assert not (places & ~known).any(), (name, np.argwhere(places & ~known)[:5].tolist())
    assert found.keys() == DIFFERS.keys() & set(names)


def test_stable_functions_keep_their_range(tmp_path: Path) -> None:
    check(STABLE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arrays", sorted({case.arrays for case in CASES.values()}))
def test_functions_are_those_of_torch(arrays: tuple[str, ...], tmp_path: Path) -> None:
    check([name for name, case in CASES.items() if case.arrays == arrays], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_function_without_a_translation_is_refused_by_name(name: str, tmp_path: Path) -> None:
    call = REFUSED[name]

    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x)

    with pytest.raises(ExportFailed, match="ONNX has no operator for"):
        torch_module.export(
            One(), [InputSpec(TensorInfo("x", "float32", (3, 8)))], {}, tmp_path / "m.onnx",
            session=backend("onnxruntime").session, progress=lambda what, share: None,
        )  # fmt: skip


def test_every_function_of_torch_is_in_a_table() -> None:
    public = {f"F.{name}" for name in _public(functional)}
    public |= {f"special.{name}" for name in _public(torch.special)}
    known = CASES.keys() | REFUSED.keys() | RANDOM | NOT_TRIED | NOT_FUNCTIONS
    assert public <= known, public - known


def test_the_docs_name_what_differs() -> None:
    rows = {
        name: cells[2].strip()
        for cells in (line.split("|") for line in DOCS.read_text().splitlines())
        if len(cells) == 4
        for name in re.findall("`([^`]+)`", cells[1])
    }
    for name, entry in DIFFERS.items():
        assert rows.get(name) == entry.what, name


def _public(module: object) -> set[str]:
    """In-place variants (`relu_`) are their functions."""
    return {
        name for name in vars(module)
        if not name.startswith("_") and not name.endswith("_")
        and callable(getattr(module, name)) and name[0].islower()
    }  # fmt: skip
