"""A precision: int4 with blocks of 128, for processors."""

from __future__ import annotations

from tests.probes.probe import Edit, Probe

PROBE = Probe(
    "a precision",
    4,
    (
        Edit(
            "optkit/facts/precisions.py",
            """            Precision(
                "nf4",""",
            """            Precision(
                "int4-wide", "fp16", _blocks("int4", 128), None, (),
                "W4A16: as int4, in blocks of 128; ONNX Runtime only", ("cpu",),
            ),
            Precision(
                "nf4",""",
        ),
        Edit(
            "optkit/craft/backends/onnxruntime.py",
            """        "w4a8": (_SIGNED, 4),
""",
            """        "w4a8": (_SIGNED, 4),
        "int4-wide": (replace(_SIGNED, block_size=128), 4),
""",
        ),
    ),
)


def check() -> None:
    """The help names it, a recipe and a build take it, and a graph is quantized to it."""
    import tempfile
    from pathlib import Path

    from click.testing import CliRunner

    from optkit.craft.backends.onnxruntime import OnnxRuntime
    from optkit.ground.recipe import Recipe
    from optkit.road import jobs
    from optkit.road.pipeline import Job, rules_of
    from optkit.verbs.cli import optkit
    from tests.networks import NETWORKS, network
    from tests.quantization.workshop import Workshop

    assert "int4-wide" in CliRunner().invoke(optkit, ["build", "--help"]).output
    recipe = Recipe.from_dict({"name": "net", "quantization": {"nodes": {"*": "int4-wide"}}})
    device, precision = jobs.pair("cpu", "int4-wide")
    rules = rules_of(OnnxRuntime(), Job(recipe, device, precision))
    assert rules[precision].weight.block_size == 128
    with tempfile.TemporaryDirectory() as folder:
        _, assignment, log = Workshop(Path(folder)).quantize(
            network(NETWORKS["attention"]), rules[precision], precision="int4-wide"
        )
    assert precision in assignment.nodes.values()
    assert {node.block_size for node in log.nodes.values()} == {128}


if __name__ == "__main__":
    check()
