"""Graphs with operators that ONNX Runtime lacks: the library is opened only if it is trusted, the
operators stay as they are, and the products around them are quantized as beside a standard one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import optkit
from optkit.craft.sources import custom_operators, onnx_file
from optkit.craft.sources.custom_operators import CustomOperators
from optkit.facts.errors import Impossible, InputRefused, OptkitError, UnsafeFile, UsageError
from optkit.facts.request import Request
from optkit.ground.artifact import Artifact
from optkit.ground.operator_library import NOTE, OperatorLibrary
from optkit.ground.runtimes import Session, simulator
from tests.custom_operators.conftest import DOMAIN, IMAGES, LABELS

HELD_OUT = slice(1200, None)


def session(model: Path) -> Session:
    return simulator().session(model)


def exported(project: Path, library: Path) -> Path:
    out = project / "exported.onnx"
    operators = CustomOperators(OperatorLibrary.trust(library), session)
    onnx_file.export(project / "custom.onnx", (), out, operators)
    return out


def build(project: Path, library: Path | None, target: str = "cpu", *, trust: bool = True,
          model: str = "custom.onnx", precision: str = "int8") -> Artifact:  # fmt: skip
    overrides = ["bench.seconds=0.2"]
    overrides += [] if library is None else [f"model.custom_ops={library}"]
    request = Request(
        str(project / model), calibration=str(project / "samples.npz"),
        overrides=tuple(overrides), trust_remote_code=trust and library is not None,
    )  # fmt: skip
    return optkit.build(request, target=target, precision=precision, out=project / "artifacts")


def test_an_exported_graph_computes_what_the_standard_one_does(
    project: Path, library: Path
) -> None:
    feed = {"image": IMAGES[HELD_OUT]}
    ours = session(exported(project, library)).run(feed)["logits"]
    np.testing.assert_allclose(
        ours, session(project / "standard.onnx").run(feed)["logits"], rtol=1e-5, atol=1e-5
    )


def test_types_and_shapes_are_those_beside_a_standard_operator(
    project: Path, library: Path
) -> None:
    plain = project / "plain.onnx"
    onnx_file.export(project / "standard.onnx", (), plain)
    ours, theirs = (
        {value.name: value.type.tensor_type for value in onnx.load(graph).graph.value_info}
        for graph in (exported(project, library), plain)
    )
    assert ours == theirs and "b0" in ours


def test_an_unknown_operator_names_the_setting(project: Path) -> None:
    with pytest.raises(InputRefused, match=r"optkit\.test:Bound") as error:
        session(project / "custom.onnx")
    assert "model.custom_ops" in str(error.value.hint)


def test_a_library_that_nobody_trusted_here_is_not_opened(
    project: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = exported(project, library)
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "another"))
    with pytest.raises(UnsafeFile, match=r"libbound\.so, which is not opened") as error:
        session(graph)
    assert "trusted=True" in str(error.value.hint)


def test_a_library_that_changed_after_it_was_trusted_is_not_opened(
    project: Path, library: Path
) -> None:
    graph = exported(project, library)
    kept = OperatorLibrary.of(graph)
    assert kept is not None
    kept.place.write_bytes(kept.place.read_bytes() + b"more")
    with pytest.raises(UnsafeFile):
        session(graph)


ZEROS = "0" * 64


@pytest.mark.parametrize("note", [
    "", "7", "[]", '{"file": "x.so"}', '{"file": "x.so", "sha256": "../../x"}',
    f'{{"file": "../x.so", "sha256": "{ZEROS}"}}',
    f'{{"file": "x.so", "sha256": "{ZEROS}", "a": 1}}',
])  # fmt: skip
def test_a_note_that_no_build_wrote_names_no_file(project: Path, note: str) -> None:
    model = onnx.load(project / "custom.onnx")
    model.metadata_props.add(key=NOTE, value=note)
    onnx.save(model, project / "noted.onnx")
    with pytest.raises(UnsafeFile, match="is not of a build"):
        OperatorLibrary.of(project / "noted.onnx")


@pytest.mark.parametrize(("name", "content", "told"), [
    ("a.so", b"text", "not a shared library"), ("a b.so", b"\x7fELF", "its name has characters"),
])  # fmt: skip
def test_what_is_no_library_is_refused(
    name: str, content: bytes, told: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputRefused, match=told):
        OperatorLibrary.trust(tmp_path / name)
    with pytest.raises(InputRefused, match="cannot be read"):
        OperatorLibrary.trust(tmp_path / "missing.so")


def test_a_library_without_the_entry_point_is_refused(project: Path, library: Path) -> None:
    graph = exported(project, library)
    kept = OperatorLibrary.of(graph)
    assert kept is not None
    other = shutil.copy(onnx.onnx_cpp2py_export.__file__, project / "libbound.so")
    model = onnx.load(graph)
    (entry,) = (entry for entry in model.metadata_props if entry.key == NOTE)
    entry.value = OperatorLibrary.trust(Path(other)).note
    onnx.save(model, graph)
    with pytest.raises(InputRefused, match="does not load the library") as error:
        session(graph)
    assert "RegisterCustomOps" in str(error.value)


def test_a_build_without_trust_is_refused(project: Path, library: Path) -> None:
    with pytest.raises(UnsafeFile, match="opening it runs its code") as error:
        build(project, library, trust=False)
    assert "--trust" in str(error.value.hint)


def test_a_gpu_whose_compilers_lack_the_operators_is_refused(project: Path, library: Path) -> None:
    with pytest.raises(Impossible, match="operators of its own") as error:
        build(project, library, "l4")
    assert "model.plugins=FILE.so" in str(error.value.hint)


def test_only_a_graph_has_such_a_library(project: Path, library: Path) -> None:
    (project / "net.py").write_text("def create(): ...\n")
    with pytest.raises(OptkitError, match="custom_ops belongs to a graph"):
        build(project, library, model="net.py:create")


@pytest.mark.slow
def test_products_around_the_operator_are_quantized_and_the_artifact_serves_elsewhere(
    project: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, standard = build(project, library), build(project, None, model="standard.onnx")
    graph = onnx.load(artifact.model_path)
    assert [(node.domain, node.op_type) for node in graph.graph.node].count((DOMAIN, "Bound")) == 1
    codes = [w.name for w in graph.graph.initializer if numpy_helper.to_array(w).dtype == np.int8]
    assert codes
    assert {name for name in artifact.manifest.files if name.startswith("operators/")} == {
        "operators/libbound.so"
    }
    noise = [one.measurement["fidelity"]["sqnr_db"] for one in (artifact, standard)]
    assert noise[0] == pytest.approx(noise[1], abs=1)

    moved = tmp_path / "moved"
    shutil.copytree(artifact.path, moved)
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "another machine"))
    feed = {"image": IMAGES[HELD_OUT]}
    with pytest.raises(UnsafeFile, match="nobody has trusted it"):
        optkit.load(moved).run(feed)
    found = optkit.load(moved, trusted=True).run(feed)["logits"].argmax(1)
    wanted = session(project / "standard.onnx").run(feed)["logits"].argmax(1)
    assert (found == wanted).mean() >= 0.99
    assert (found == LABELS[HELD_OUT]).mean() >= 0.85
    assert optkit.load(moved).run(feed)  # from now on, whoever opens it on this machine


@pytest.mark.slow
def test_formats_without_a_place_for_the_library_are_refused(project: Path, library: Path) -> None:
    artifact = build(project, library)
    with pytest.raises(UsageError, match="no place for the graph's own operators"):
        optkit.package(artifact.path, format="triton", out=project)
    slim = optkit.package(artifact.path, format="slim", out=project)
    assert any(file.name.endswith("operators/libbound.so") for file in slim.files)


AXES = [2, 4], [3, 5]


@given(
    st.lists(st.sampled_from(["batch", "tokens", 1, 2, 7, "values"]), max_size=4),
    st.lists(st.integers(8, 9), min_size=3, max_size=3).filter(lambda sizes: len({*sizes}) > 1),
)
def test_a_dimension_is_fixed_named_or_unknown(wanted: list[int | str], values: list[int]) -> None:
    """As three runs show it: 2 and 4, again, then 3 and 5; `values` differs between the runs."""
    small, large = ({"batch": batch, "tokens": tokens} for batch, tokens in AXES)
    seen = [
        tuple(dim if isinstance(dim, int) else {**sizes, "values": value}[dim] for dim in wanted)
        for sizes, value in zip((small, small, large), values, strict=True)
    ]
    expected = [None if dim == "values" else dim for dim in wanted]
    assert custom_operators.observed(seen, small, large) == expected


def test_a_value_whose_rank_changes_has_no_shape() -> None:
    assert custom_operators.observed([(1,), (1, 1), (1,)], {}, {}) is None
