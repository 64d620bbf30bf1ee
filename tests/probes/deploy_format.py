"""A deploy format: the graph alone."""

from __future__ import annotations

from tests.probes.probe import Edit, Probe

PROBE = Probe(
    "a deploy format",
    2,
    (
        Edit(
            "optkit/road/packaging/formats.py",
            """    "gguf": "a decoder in one file for llama.cpp",
""",
            """    "gguf": "a decoder in one file for llama.cpp",
    "graph-alone": "the file of the graph",
""",
        ),
        Edit(
            "optkit/road/packaging/graph_alone.py",
            "",
            '''"""The graph alone: a package of one file."""

from __future__ import annotations

from pathlib import Path

from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.variants import PackageSubject


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    artifact = subject.only("graph-alone").artifact
    return PackageContent({"model.onnx": artifact.path / "model.onnx"})
''',
        ),
    ),
)


def check() -> None:
    """The command line takes it, says so, and writes the package of an artifact."""
    import json
    import tempfile
    from pathlib import Path

    from click.testing import CliRunner

    from optkit.verbs.cli import optkit

    artifact = Path("tests/artifact/old/2026-11-24/tiny-cpu-int8")
    with tempfile.TemporaryDirectory() as folder:
        command = ["package", str(artifact), "--format", "graph-alone", "--out", folder, "--json"]
        done = CliRunner().invoke(optkit, command)
        assert done.exit_code == 0, done.output
        package = json.loads(done.output)
        assert package["format"] == "graph-alone"
        packed = Path(package["folder"])
        assert (packed / "model.onnx").read_bytes() == (artifact / "model.onnx").read_bytes()


if __name__ == "__main__":
    check()
