"""`optkit.build` of a module, a loader and a function that live only in the caller's memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import optkit
from optkit.facts import errors
from optkit.facts.evidence import Evidence
from optkit.ground.workspace import Silent
from optkit.road.jobs import in_memory

QUICK = {"bench": {"seconds": 0.05, "warmup_seconds": 0.02}}
Evaluate = Callable[[Any], Any]


class Classifier(nn.Module):
    """features [B, 16] → logits [B, 4]"""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, features: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(features))))


@pytest.fixture(scope="module")
def model() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


@pytest.fixture(scope="module")
def data(model: Classifier) -> tuple[Tensor, np.ndarray]:
    """Samples, and the labels that the model itself gives them: [2048, 16], [2048]."""
    features = torch.randn(2048, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model.eval()(features)
    sure = logits.topk(2).values.diff().abs().squeeze() > 0.02  # no ties to flip
    model.train()
    return features[sure], logits[sure].argmax(1).numpy()


@pytest.fixture(scope="module")
def calibration(data: tuple[Tensor, np.ndarray]) -> list[Tensor]:
    return list(torch.randn(8, 32, 16, generator=torch.Generator().manual_seed(2)))


@pytest.fixture(scope="module")
def evaluate(data: tuple[Tensor, np.ndarray]) -> Evaluate:
    features, labels = data

    def score(session: Any) -> np.ndarray:
        assert (session.inputs, session.outputs) == (("features",), ("output",))
        [logits] = session.run({"features": features.numpy()}).values()
        return np.asarray(logits.argmax(1) == labels)

    return score


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def build(
    model: Classifier, calibration: list[Tensor], evaluate: Evaluate, cache: Path
) -> Callable[..., optkit.Artifact]:
    def run(**changes: Any) -> optkit.Artifact:
        options = {
            "model": model, "example_inputs": torch.randn(4, 16), "calibration": calibration,
            "evaluate": evaluate, "target": "cpu", "recipe": QUICK,
            "workspace": optkit.Workspace(cache), **changes,
        }  # fmt: skip
        return optkit.build(options.pop("model"), options.pop("example_inputs"), **options)

    return run


def expected(model: Classifier, features: Tensor) -> np.ndarray:
    training = model.training
    with torch.no_grad():
        found = model.eval()(features).numpy()
    model.train(training)
    return np.asarray(found)


def test_a_module_becomes_an_artifact_for_the_cpu(
    build: Any, model: Classifier, data: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    artifact = build(out=tmp_path, precision="int8")
    assert capfd.readouterr() == ("", "")  # a library prints nothing
    assert model.training  # the module is left as it was found
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    result = artifact.result
    assert artifact.path == tmp_path / "Classifier-cpu-int8"
    assert (result["model"], result["gate"]["verdict"]) == ("Classifier", "pass")
    assert result["accuracy"]["samples"] == len(data[1]) and result["accuracy"]["value"] > 0.98
    assert result["baseline"]["accuracy"]["value"] == 1
    assert result["engine"]["landing"]["landed"] == 2
    assert artifact.measurement["latency"] == result["latency"]
    assert artifact.measurement["fidelity"]["sqnr_db"] > 25
    artifact.verify()
    features = data[0][:64]
    reference = expected(model, features)
    with optkit.load(artifact.path) as loaded:
        [found] = loaded.run({"features": features.numpy()}).values()
    assert np.abs(found - reference).mean() < 0.02 * np.abs(reference).max()
    with optkit.load(artifact.path).session() as session:
        assert session.evidence == "measured"
        [alone] = session.run({"features": features[:1].numpy()}).values()
    assert alone.shape == (1, 4)
    again = build(out=tmp_path / "again", precision="int8")
    assert again.digest == artifact.digest
    assert again.result["cache_hits"] > result["cache_hits"]


@pytest.mark.slow
def test_a_module_becomes_an_artifact_for_a_gpu_that_is_not_here(
    build: Any, model: Classifier, data: Any, tmp_path: Path
) -> None:
    artifact = build(out=tmp_path, target="l4", precision="int8", name="mine")
    result = artifact.result
    assert artifact.name == "mine-l4-int8"
    assert (result["engine"]["backend"], result["engine"]["evidence"]) == (
        "tensorrt-rtx", "compiled",
    )  # fmt: skip
    assert result["engine"]["landing"]["landed"] == result["engine"]["landing"]["planned"] == 2
    assert (result["accuracy"]["evidence"], result["latency"]["evidence"]) == (
        "simulated", "predicted",
    )  # fmt: skip
    features = data[0][:64]
    with artifact.session() as session:
        assert session.evidence == "simulated" and session.note
        [found] = session.run({"features": features.numpy()}).values()
    reference = expected(model, features)
    assert np.abs(found - reference).mean() < 0.02 * np.abs(reference).max()


@pytest.mark.slow
def test_without_evaluate_the_verdict_is_inconclusive(build: Any, tmp_path: Path) -> None:
    artifact = build(out=tmp_path, evaluate=None)
    assert artifact.result["gate"]["verdict"] == "inconclusive"
    assert artifact.result["accuracy"] is None and artifact.result["fidelity"] is not None
    assert artifact.manifest.recipe["gates"]["max_drop"] == 0.01  # the default


@pytest.mark.slow
def test_a_failed_gate_is_marked_and_raises_nothing(
    build: Any, evaluate: Evaluate, tmp_path: Path
) -> None:
    recipe = {**QUICK, "gates": {"max_drop": "-5%"}}
    artifact = build(out=tmp_path, recipe=recipe)
    assert (artifact.result["status"], artifact.result["gate"]["verdict"]) == (
        "gate_failed",
        "fail",
    )


@pytest.mark.slow
def test_full_precision_needs_no_calibration_and_is_exact(
    build: Any, model: Classifier, data: Any, tmp_path: Path
) -> None:
    artifact = build(out=tmp_path, precision="fp32", calibration=None)
    assert artifact.result["drop"]["value"] == 0
    features = data[0][:64]
    with artifact:
        [found] = artifact.run({"features": features.numpy()}).values()
    np.testing.assert_allclose(found, expected(model, features), atol=1e-5)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (0.97, ["0.97", "one score per sample"]),
        (np.float32(0.97), ["one score per sample"]),
        (None, ["None", "one score per sample"]),
        ([], ["one score per sample"]),
        ({"top1": 0.97}, ["top1", "one score per sample"]),
        ([[1.0], [0.0]], ["one score per sample"]),
        (float("nan"), ["nan", "one score per sample"]),
        ([1.0, float("nan")], ["sample 1", "nan", "finite"]),
        (torch.tensor([1.0, 0.0, float("inf")]), ["sample 2", "inf", "finite"]),
    ],
)  # fmt: skip
def test_what_evaluate_may_not_return(returned: object, told: list[str]) -> None:
    with pytest.raises(errors.InputRefused) as caught:
        in_memory.score_of(returned, Evidence.MEASURED)
    text = f"{caught.value}\n{caught.value.hint}"
    assert "evaluate(session)" in text
    assert all(part in text for part in told), text


def test_scores_may_come_with_groups() -> None:
    found = in_memory.score_of((np.ones(6), ["a", "a", "b", "a", "c", "c"]), Evidence.MEASURED)
    assert found.groups == (0, 0, 1, 0, 2, 2) and found.basis is not None
    assert (found.basis.units, found.basis.kind) == (3, "groups")
    assert in_memory.score_of((0.5, 0.75), Evidence.MEASURED).per_sample == (0.5, 0.75)
    with pytest.raises(errors.InputRefused, match="2 groups for 3 scores"):
        in_memory.score_of((np.ones(3), ["a", "b"]), Evidence.MEASURED)


@pytest.mark.slow
def test_scores_that_cannot_be_used_leave_no_artifact(build: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.InputRefused, match="one score per sample"):
        build(out=tmp_path, evaluate=lambda session: 0.97)
    assert not (tmp_path / "Classifier-cpu-int8").exists()


@pytest.mark.slow
def test_scores_must_be_of_the_same_samples(build: Any, tmp_path: Path) -> None:
    sizes = iter([100, 99])
    with pytest.raises(errors.InputRefused, match="100 scores for the candidate, 99 for the"):
        build(out=tmp_path, evaluate=lambda session: np.ones(next(sizes)))


@pytest.mark.slow
def test_an_error_of_evaluate_is_the_callers_own(build: Any, tmp_path: Path) -> None:
    def broken(session: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        build(out=tmp_path, evaluate=broken)
    with pytest.raises(errors.InputRefused, match="features"):  # a feed the model does not take
        build(out=tmp_path, evaluate=lambda session: session.run({"image": np.ones((1, 16))}))


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        (lambda good: [], ["calibration", "no samples"]),
        (lambda good: good[:1][0][:5], ["calibration", "shape is [16]", "axis 0 is the batch"]),
        (lambda good: [good[0][:5]], ["5 calibration samples are too few"]),
        (lambda good: [good[0].double()], ["calibration, sample 0", "float64", "float32"]),
        (lambda good: [good[0], good[1] * float("nan")], ["calibration, sample 32", "NaN"]),
        (lambda good: [{"image": good[0]}], ["calibration, sample 0", "'image'", "features"]),
        (lambda good: [good[0], "text"], ["calibration, sample 32"]),
    ],
)
def test_calibration_batches_that_cannot_be_used(
    batches: Callable[[list[Tensor]], Any], told: list[str], build: Any,
    calibration: list[Tensor], tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(errors.InputRefused) as caught:
        build(out=tmp_path, calibration=batches(calibration))
    text = f"{caught.value}\n{caught.value.hint}"
    assert all(part in text for part in told), text


def test_int8_without_calibration_is_refused(build: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.InputRefused, match="int8 needs calibration samples") as caught:
        build(out=tmp_path, calibration=None)
    assert "calibration" in str(caught.value.hint)


@pytest.mark.slow
def test_a_loaders_batches_may_be_dicts_tuples_or_arrays(
    build: Any, calibration: list[Tensor], tmp_path: Path
) -> None:
    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in calibration:
            yield batch, torch.zeros(len(batch))  # a DataLoader's labels are passed over

    forms = [pairs(), [{"features": batch.numpy()} for batch in calibration],
             [batch.requires_grad_() for batch in torch.stack(calibration)]]  # fmt: skip
    digests = {build(out=tmp_path, calibration=form).digest for form in forms}
    assert len(digests) == 1


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "told"),
    [
        (
            Undecided(),
            torch.randn(2, 4),
            errors.ExportFailed,
            ["run time", "torch.where", "x.sum()"],
        ),
        (nn.Linear(4, 2), None, errors.UsageError, ["example_inputs"]),
        (nn.Linear(4, 2), torch.randn(2, 5), errors.ExportFailed, ["Linear", "shapes"]),
        (nn.Linear(4, 2), {"image": torch.randn(2, 4)}, errors.UsageError, ["Linear", "input"]),
        (nn.Linear(4, 2), "text", errors.UsageError, ["tensors"]),
        (object(), torch.randn(2, 4), errors.UsageError, ["object", "nn.Module"]),
    ],
)
def test_models_that_cannot_be_exported(
    model: Any, inputs: Any, kind: type[errors.OptkitError], told: list[str], cache: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(kind) as caught:
        optkit.build(model, inputs, target="cpu", precision="fp32", out=tmp_path,
                     workspace=optkit.Workspace(cache))  # fmt: skip
    text = f"{caught.value}\n{caught.value.hint}"
    assert all(part in text for part in told), text
    assert caught.value.where and caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "precision", "kind"),
    [
        ("t4", "fp8", errors.Impossible),
        ("nosuch", "int8", errors.UnknownName),
        ("l4", "int9", errors.UnknownName),
    ],
)
def test_a_pair_that_cannot_be_is_refused_before_the_export(
    target: str, precision: str, kind: type[errors.OptkitError], model: Classifier, tmp_path: Path
) -> None:
    with pytest.raises(kind):
        optkit.build(
            model, torch.randn(2, 16), target=target, precision=precision, out=tmp_path / "out",
            workspace=optkit.Workspace(tmp_path / "cache"),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_stages_are_functions_too(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text("from torch import nn\n\ndef create():\n    return nn.Linear(16, 4)\n")
    inputs = {"input": {"dtype": "float32", "shape": ["batch", 16]}}
    recipe = {"name": "net", "inputs": inputs, **QUICK}
    options = {"recipe": recipe, "workspace": optkit.Workspace(cache)}
    exported = optkit.export(f"{source}:create", out=tmp_path / "e", **options)
    fused = optkit.fuse(f"{source}:create", out=tmp_path / "f", **options)
    compiled = optkit.compile(f"{source}:create", out=tmp_path / "c", **options)
    assert (exported / "model.onnx").exists() and (fused / "model.onnx").exists()
    assert (compiled / "onnxruntime.onnx").exists()
    with pytest.raises(errors.UsageError, match="exists already"):
        optkit.export(f"{source}:create", out=tmp_path / "e", **options)
    timed = optkit.bench(f"{source}:create", target="cpu", precision="fp32", batches=[1],
                         limit_ms=60_000, **options)  # fmt: skip
    assert [one["batch"] for one in timed["latency"]] == [1, 8]  # the one it is tuned for too
    assert timed["latency"][0]["evidence"] == "measured"
    assert timed["sweep"]["best_under_limit"] in (1, 8)
    scored = optkit.evaluate(f"{source}:create", target="cpu", precision="fp32", **options)
    assert scored["accuracy"] is None and scored["fidelity"]["cosine"] == pytest.approx(1)
    graph = exported / "model.onnx"  # which is a model as well
    pending = optkit.build(graph, target="h100", precision="fp16", out=tmp_path,
                           workspace=optkit.Workspace(cache))  # fmt: skip
    assert (pending.name, pending.result["status"]) == ("e-model-h100-sxm-fp16", "pending")
    with pytest.raises(TypeError, match="nosuch"):
        optkit.export(f"{source}:create", out=tmp_path / "g", nosuch=1)
    assert str(source) not in sys.path


@pytest.mark.slow
def test_a_loader_is_read_up_to_the_samples_wanted_and_no_further(
    build: Any, calibration: list[Tensor], tmp_path: Path
) -> None:
    asked = 0

    def endless() -> Iterator[Tensor]:
        nonlocal asked
        while True:
            yield calibration[asked % len(calibration)] + asked
            asked += 1
            assert asked < 100, "it is read on and on"

    recipe = {**QUICK, "calibration": {"source": "memory", "samples": 64}}
    build(out=tmp_path, calibration=endless(), evaluate=None, recipe=recipe)
    assert asked == 1  # of two batches of 32, the second was the last
    asked = 0
    artifact = build(out=tmp_path, calibration=endless(), evaluate=None)
    assert asked == 7
    assert artifact.manifest.data["calibration"]["samples"] == 256  # the default


class Tagger(nn.Module):
    """input_ids [B, T] → logits [B, 4]; with labels a loss before them, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.last(self.table(input_ids).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.slow
def test_a_trainers_batch_is_example_and_calibration_without_its_labels(
    cache: Path, tmp_path: Path
) -> None:
    batch = {"input_ids": torch.arange(48).reshape(8, 6) % 16, "labels": torch.arange(8) % 4}
    artifact = optkit.build(
        Tagger(), batch, calibration=[batch, batch], target="cpu", precision="int8",
        recipe=QUICK, workspace=optkit.Workspace(cache), out=tmp_path,
    )  # fmt: skip
    assert [info.name for info in artifact.manifest.inputs] == ["input_ids"]
    assert [info.name for info in artifact.manifest.outputs] == ["logits"]
    with pytest.raises(errors.InputRefused, match="'input_id'"):  # misspelt, and no label
        optkit.build(
            Tagger(), batch, calibration=[{"input_id": batch["input_ids"]}], target="cpu",
            recipe=QUICK, workspace=optkit.Workspace(cache), out=tmp_path,
        )  # fmt: skip
    longer = {"input_ids": torch.ones(8, 9, dtype=torch.int64)}
    fixed = {"inputs": {"input_ids": {"dtype": "int64", "shape": ["batch", 6]}}}
    with pytest.raises(errors.InputRefused, match=r"pad them alike.*\[batch, axis1\]") as caught:
        optkit.build(
            Tagger(), batch, calibration=[batch, longer], target="cpu",
            recipe=QUICK | fixed, workspace=optkit.Workspace(cache), out=tmp_path,
        )  # fmt: skip
    assert caught.value.where == "calibration, sample 8, input 'input_ids'"
    with artifact, pytest.raises(errors.UsageError, match=r"run\({'input_ids': array}\)"):
        artifact.run(np.ones((1, 6), np.int64))
    with pytest.raises(errors.UsageError, match="by input name, not Tensor"):
        optkit.build(
            Tagger(), batch, evaluate=lambda session: session.run(batch["input_ids"]),
            target="cpu", precision="fp32", recipe=QUICK, workspace=optkit.Workspace(cache),
            out=tmp_path,
        )  # fmt: skip


class Noted(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.slow
def test_batches_padded_to_their_own_longest_sample_make_a_dynamic_axis(
    cache: Path, tmp_path: Path
) -> None:
    def batch(length: int) -> dict[str, Tensor]:
        ids = torch.arange(8 * length).reshape(8, length) % 16
        return {"input_ids": ids, "labels": torch.arange(8) % 4}

    net, heard = Tagger(), Noted()
    artifact = optkit.build(
        net, batch(6), calibration=map(batch, (6, 9, 4)), target="cpu", recipe=QUICK,
        workspace=optkit.Workspace(cache, listener=heard), out=tmp_path,
    )  # fmt: skip
    assert any("axis 1 of input_ids: the size differs" in note for note in heard.notes)
    assert artifact.manifest.data["calibration"]["samples"] == 24
    with artifact:
        for length in (4, 7, 9):
            ids = batch(length)["input_ids"]
            logits = artifact.run({"input_ids": ids})["logits"]
            wanted = net(ids)["logits"].detach().numpy()
            assert np.abs(logits - wanted).max() < 0.1 * np.abs(wanted).max()


def test_calibration_batches_that_the_model_cannot_run_on_are_named(
    cache: Path, tmp_path: Path
) -> None:
    loader = [torch.zeros(8, 16), torch.zeros(4, 12)]
    with pytest.raises(
        errors.InputRefused, match=r"shape is \[4, 12\].* takes \[batch, 16\]"
    ) as caught:
        optkit.build(
            torch.nn.Linear(16, 2), torch.zeros(2, 16), calibration=loader, target="cpu",
            workspace=optkit.Workspace(cache), out=tmp_path,
        )  # fmt: skip
    assert caught.value.where == "calibration, sample 8, input 'input'"
