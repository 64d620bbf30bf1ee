"""Model packages of ONNX Runtime: opened, selected and run by ONNX Runtime 1.32 itself."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from optkit.facts.errors import ToolchainMissing, UsageError
from optkit.ground.artifact import Artifact
from optkit.ground.devices import Target
from optkit.ground.runtimes import BACKENDS
from optkit.road.packaging import formats, ort_package, ort_settings
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.environments import ROOT, environment, output
from tests.packaging import tiny
from tests.packaging.identity import DATA, Generated, artifact, contents

CPU = "CPUExecutionProvider"


def package(out: Path, *artifacts: Artifact, name: str = "net") -> tuple[Path, tuple[str, ...]]:
    """The folder of the package, and its notes."""
    subject = PackageSubject(name, tuple(map(Variant, artifacts)))
    written = formats.package(subject, "ort-package", out)
    return Path(written.folder), written.notes


def read(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text())
    assert isinstance(found, dict)
    return found


def test_every_backend_has_providers() -> None:
    assert ort_settings._DEVICES.keys() == BACKENDS.keys()


def test_targets_with_different_providers_are_variants_of_one_component(tmp_path: Path) -> None:
    built = [artifact(tmp_path, name) for name in ("l4", "h100-sxm", "cpu")]
    folder, notes = package(tmp_path / "packages", *built)
    assert contents(folder).keys() == {
        "manifest.json", "model/component.json", "model/cpu/model.onnx",
        "model/h100-sxm/model.onnx", "model/l4/model.onnx",
    }  # fmt: skip
    assert read(folder / "manifest.json")["components"] == {"model": "model"}
    variants = read(folder / "model" / "component.json")["variants"]
    assert {name: variant["ep"] for name, variant in variants.items()} == {
        "cpu": CPU, "h100-sxm": "TensorrtExecutionProvider", "l4": "NvTensorRTRTXExecutionProvider",
    }  # fmt: skip
    assert variants["cpu"]["executor_info"]["ort"]["session_options"] == {
        "optimization.disable_specified_optimizers": "MatMulAddFusion;WeightBiasQuantization"
    }
    assert variants["l4"]["executor_info"]["ort"]["session_options"] == {
        "graph_optimization_level": "enable_basic"
    }
    assert notes == ()


def test_targets_of_one_provider_are_components(tmp_path: Path) -> None:
    folder, notes = package(
        tmp_path / "packages", *(artifact(tmp_path, name) for name in ("l4", "rtx4090", "cpu"))
    )
    components = read(folder / "manifest.json")["components"]
    assert components == {name: name for name in ("cpu", "l4", "rtx4090")}
    for name in components:
        assert [*read(folder / name / "component.json")["variants"]] == [name]
    assert len(notes) == 1 and "name one of cpu, l4, rtx4090" in notes[0]


def test_every_figure_has_its_evidence(tmp_path: Path) -> None:
    folder, notes = package(tmp_path / "packages", tiny.artifact(tmp_path))
    (variant,) = read(folder / "model" / "component.json")["variants"].values()
    about = variant["additional_metadata"]["optkit"]
    assert (about["target"], about["precision"], about["status"]) == ("l4", "int8", "ok")
    assert about["figures"]["latency_ms_p50"] == {
        "value": 0.25, "evidence": "predicted", "interval": [0.1, 0.5],
    }  # fmt: skip
    assert all("evidence" in figure for figure in about["figures"].values())
    assert "an engine, which this format does not hold" in notes[0]


def test_data_files_and_tokenizers_of_several_variants_are_stored_once(tmp_path: Path) -> None:
    """An asset is found by ONNX Runtime's digest: the SHA-256 of what sha256sum prints."""
    tokenizer: dict[str, Path | bytes] = {"tokenizer.json": b"{}"}
    pair = [artifact(tmp_path, name, location="model.onnx.data", content=tokenizer)
            for name in ("l4", "h100-sxm")]  # fmt: skip
    alone = artifact(tmp_path, "cpu", location="other.data")
    folder, _ = package(tmp_path / "packages", *pair, alone)
    assets = {file.name: file.parent for file in (folder / "shared_assets").rglob("*.*")}
    assert assets.keys() == {"model.onnx.data", "tokenizer.json"}
    for name, place in assets.items():
        listed = subprocess.run(["sha256sum", name], cwd=place, capture_output=True, check=True)
        whole = subprocess.run(["sha256sum"], input=listed.stdout, capture_output=True, check=True)
        assert place.name == f"sha256-{whole.stdout.split()[0].decode()}"
    assert (folder / "model" / "cpu" / "other.data").read_bytes() == DATA.tobytes()
    assert not (folder / "model" / "l4" / "model.onnx.data").exists()
    variants = read(folder / "model" / "component.json")["variants"]
    for name in ("l4", "h100-sxm"):
        options = variants[name]["executor_info"]["ort"]["session_options"]
        uri = assets["model.onnx.data"].name.replace("-", ":")
        assert options["session.model_external_initializers_file_folder_path"] == uri
        about = variants[name]["additional_metadata"]["optkit"]
        assert about["companions"] == assets["tokenizer.json"].name.replace("-", ":")


def test_a_graph_for_vnni_says_what_other_cpus_need(tmp_path: Path) -> None:
    built = artifact(tmp_path, "cpu")
    vnni = Artifact(built.path, replace(built.manifest, instruction_set="vnni"))
    _, (note,) = package(tmp_path / "packages", vnni)
    assert "for CPUs with VNNI" in note and "session.x64quantprecision" in note


def test_the_same_artifacts_give_the_same_bytes(tmp_path: Path) -> None:
    built = [artifact(tmp_path, name) for name in ("cpu", "l4")]
    first, _ = package(tmp_path / "one", *built)
    second, _ = package(tmp_path / "two", *reversed(built))
    assert contents(first) == contents(second)


def test_a_target_without_a_provider_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no execution provider for groq-lpu"):
        package(tmp_path / "packages", artifact(tmp_path, "groq-lpu"))
    assert not (tmp_path / "packages").exists()


# --- compiled on this machine --------------------------------------------------------------------


class L4Here:
    """TensorRT-RTX's provider on a machine with an L4."""

    def check(self) -> None: ...

    def write_context(self, model: Path, target: Target, out: Path) -> str:
        if target.name != "l4":
            raise ToolchainMissing(f"it is built for {target.name}, but the device is NVIDIA L4")
        out.write_bytes(model.read_bytes())
        return "76747274"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_package, "TensorRTRTXProvider", L4Here)


def compiled(out: Path, *artifacts: Artifact) -> tuple[Path, tuple[str, ...]]:
    subject = PackageSubject("net", tuple(map(Variant, artifacts)), compiled=True)
    written = formats.package(subject, "ort-package", out)
    return Path(written.folder), written.notes


def test_what_the_card_compiled_is_a_variant_beside_the_graph(card: None, tmp_path: Path) -> None:
    built = [artifact(tmp_path, name) for name in ("l4", "cpu")]
    plain, _ = package(tmp_path / "plain", *built)
    folder, (note,) = compiled(tmp_path / "packages", *built)
    added = contents(folder).keys() - contents(plain).keys()
    assert added == {"model/l4-compiled/model.onnx"}
    before, variants = (
        read(place / "model" / "component.json")["variants"] for place in (plain, folder)
    )
    assert {name: variants[name] for name in before} == before
    both = {**before["l4"], "compatibility_string": "76747274"}
    assert variants["l4-compiled"] == both
    assert "l4-compiled has machine code" in note


def test_only_what_is_for_the_card_is_compiled(card: None, tmp_path: Path) -> None:
    built = {name: artifact(tmp_path, name) for name in ("l4", "rtx4090", "cpu")}
    folder, _ = compiled(tmp_path / "packages", built["l4"], built["rtx4090"])
    for name, variants in (("l4", ["l4", "l4-compiled"]), ("rtx4090", ["rtx4090"])):
        assert [*read(folder / name / "component.json")["variants"]] == variants
    with pytest.raises(ToolchainMissing, match="built for rtx4090, but the device is NVIDIA L4"):
        compiled(tmp_path / "none", built["rtx4090"])
    with pytest.raises(UsageError, match="no variant for NvTensorRTRTXExecutionProvider"):
        compiled(tmp_path / "none", built["cpu"])
    with pytest.raises(UsageError, match="slim holds nothing that a machine compiles"):
        optkit.package(built["l4"].path, format="slim", out=tmp_path / "none", compiled=True)
    assert not (tmp_path / "none").exists()


def test_without_the_provider_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainMissing, match="TensorRT-RTX provider is not installed"):
        compiled(tmp_path / "packages", artifact(tmp_path, "l4"))
    assert not [*tmp_path.glob("packages/*")]


def test_onnx_runtime_takes_the_graph_where_no_provider_speaks_for_the_compiled_one(
    card: None, tmp_path: Path
) -> None:
    """As on a device that the machine code does not fit; another provider takes the place."""
    ort = pytest.importorskip("onnxruntime")
    if not hasattr(ort, "ModelPackageContext"):
        pytest.skip(f"ONNX Runtime {ort.__version__} reads no packages")
    folder, _ = compiled(tmp_path / "packages", artifact(tmp_path, "l4"))
    file = folder / "model" / "component.json"
    stand_in = "AzureExecutionProvider"
    file.write_text(file.read_text().replace("NvTensorRTRTXExecutionProvider", stand_in))
    options = ort.SessionOptions()
    options.add_provider(stand_in, {})
    chosen = ort.ModelPackageContext(str(folder)).select_component(
        "model", ort.ModelPackageOptions(options)
    )
    assert chosen.get_selected_variant_name() == "l4"


# --- read by ONNX Runtime ------------------------------------------------------------------------

READ = """
import json, sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

STAND_IN = "AzureExecutionProvider"


def selected(folder, component, provider):
    options = ort.SessionOptions()
    options.add_provider(provider, {})
    package = ort.ModelPackageContext(str(folder))
    return package.select_component(component, ort.ModelPackageOptions(options))


def check(case):
    folder = Path(case["folder"])
    info = ort.ModelPackage.open(str(folder)).get_info()
    assert [c["name"] for c in info["components"]] == [*case["components"]], info
    for component, variants in case["components"].items():
        for name, provider in variants.items():
            if provider != "CPUExecutionProvider":
                # this wheel lacks the provider: one that it has takes its place
                file = folder / component / "component.json"
                text = file.read_text()
                file.write_text(text.replace(f'"{provider}"', f'"{STAND_IN}"'))
                provider = STAND_IN
            else:
                text = None
            choice = selected(folder, component, provider)
            assert choice.get_selected_variant_name() == name, (name, choice)
            session = choice.create_session()
            signature = [[i.name, i.type, i.shape] for i in session.get_inputs()]
            assert signature == case["inputs"], (signature, case)
            feed = np.load(case["feed"])
            for output, found in zip(session.get_outputs(), session.run(None, dict(feed))):
                wanted = feed[output.name[3:]] if output.name != "of weight" else np.arange(16)
                np.testing.assert_array_equal(found, wanted)
            if text is not None:
                file.write_text(text)


errors = 0
cases = json.loads(Path(sys.argv[1]).read_text())
for case in cases:
    try:
        check(case)
    except Exception as error:
        errors += 1
        print(case, repr(error))
print(f"{len(cases)} packages, {errors} errors")
"""

PAGE = (ROOT / "docs/how_to/package_ort.md").read_text(encoding="utf-8")
(SNIPPET,) = re.findall(r"```python\n(import onnxruntime\n.*?)```", PAGE, re.DOTALL)
RUN = f"""
{SNIPPET}
import sys
import numpy as np

feed, out = sys.argv[1:]
names = [output.name for output in session.get_outputs()]
np.savez(out, **dict(zip(names, session.run(names, dict(np.load(feed))))))
print(package.select_component("model", options).get_selected_variant_name())
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with ONNX Runtime 1.32, which reads model packages."""
    return environment("onnxruntime-1.32", "onnxruntime==1.32.0", constrained=False)


def packaged(drawn: Generated, out: Path, seed: int) -> dict[str, object]:
    """Write the package of a fleet; return what the reader has to find."""
    built = drawn.artifacts(out)
    folder, _ = package(out, *built)
    providers = {
        one.manifest.target: ort_settings.settings_of(one).device.providers[0] for one in built
    }
    apart = len({*providers.values()}) == len(providers)
    ordered = dict(sorted(providers.items()))
    np.savez(out / "feed.npz", **drawn.feed(seed))
    kinds = {"float32": "float", "float64": "double"}
    return {
        "folder": str(folder),
        "components": {"model": ordered} if apart else {n: {n: p} for n, p in ordered.items()},
        "inputs": [
            [info.name, f"tensor({kinds.get(info.dtype, info.dtype)})", list(info.shape)]
            for info in drawn.inputs
        ],
        "feed": str(out / "feed.npz"),
    }


@pytest.mark.slow
def test_onnx_runtime_reads_500_generated_packages(python: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    cases = [
        packaged(Generated.draw(draw), tmp_path / f"fleet-{number}", number)
        for number in range(500)
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    printed = output([python, "-c", READ, tmp_path / "cases.json"], tmp_path)
    assert printed.splitlines()[-1] == "500 packages, 0 errors", printed


@pytest.mark.slow
def test_onnx_runtime_computes_the_same_bits(python: Path, cache: Path, tmp_path: Path) -> None:
    """Of the artifact's session: the variant for this CPU, in a package that also has one for a
    GPU, opened as the page says."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 144, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    example = torch.randn(8, 3, 16, 16)
    built = [
        optkit.build(net, example, target=target, precision="int8", calibration=[example],
                     out=tmp_path, name="net", workspace=optkit.Workspace(cache))
        for target in ("cpu", "l4")
    ]  # fmt: skip
    package(tmp_path / "packages", *built, name="digits-vit")
    (name,) = (info.name for info in built[0].manifest.inputs)
    feed = {name: np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype(np.float32)}
    np.savez(tmp_path / "feed.npz", **feed)
    chosen = output([python, "-c", RUN, "feed.npz", "out.npz"], tmp_path)
    assert chosen.strip() == "cpu"
    found = np.load(tmp_path / "out.npz")
    with built[0].session() as session:
        ours = session.run(feed)
    assert found.keys() == ours.keys()
    for key, value in ours.items():
        np.testing.assert_array_equal(found[key], value)
