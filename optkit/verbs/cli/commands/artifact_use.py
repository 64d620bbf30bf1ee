"""Commands that read an artifact: `inspect`, `explain`, `diff`, `package`, `sign`, `verify`,
`generate`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.verbs.cli import options, param_types


@options.command("optkit inspect artifacts/digits-vit-l4-int8", "optkit inspect model.onnx")
@click.argument("path", type=param_types.EITHER)
@options.work
@options.output
@options.calls("optkit.verbs.cli.inspect:inspect")
def inspect() -> None:
    """Show what PATH holds: an artifact (a folder) or a model.onnx.

    It shows inputs, operators, parameters, bytes, MACs and precision. For an artifact it first
    verifies every file, and also shows the verdict, evidence and landing.

    The limits on memory and time follow from the size of the graph; --memory and --timeout replace
    them.
    """


@options.command(
    "optkit explain artifacts/digits-vit-l4-int8",
    "optkit explain artifacts/digits-vit-l4-int8 --apply faster.yaml --html why.html",
)
@click.argument("artifact", type=param_types.ARTIFACT)
@click.option(
    "--apply",
    type=click.Path(path_type=Path),
    metavar="RECIPE",
    help="Write the recipe with these changes to this new file.",
)
@options.html
@options.work
@options.output
@options.calls("optkit.verbs.cli.explain:explain")
def explain() -> None:
    """Say why ARTIFACT is not faster, and why its accuracy fell; the most costly finding first.

    Each finding has its cost, the evidence for it, and a change that would help: a line of the
    recipe, if a recipe can express it.
    """


@options.command(
    "optkit diff artifacts/old artifacts/new",
    "optkit diff artifacts/old artifacts/new --html diff.html",
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--exit-code", is_flag=True, help="Exit 1 if they differ, as git does.")
@options.html
@options.work
@options.output
@options.calls("optkit.verbs.cli.diff:diff")
def diff() -> None:
    """Compare A and B: artifacts, .onnx files, report.json files or results of builds.

    Of graphs: nodes, precision, weights and scales. Of builds: latency, accuracy and sizes; a
    difference is reported only if the intervals support it. Also recipe, data and versions.
    """


@options.command(
    "optkit package artifacts/house-numbers-fleet --format oci --out packages",
    "optkit package artifacts/house-numbers-cpu-int8 --format huggingface",
    "optkit package artifacts/my-llama-cpu-int4 --format lora --adapter sql=loras/sql",
)
@click.argument("path", type=param_types.BUILT)
@click.option(
    "--format",
    "form",
    required=True,
    type=param_types.Name("optkit.road.packaging.formats:FORMATS"),
    help="compressed-tensors, gguf, huggingface, lora, mlflow, mlx, oci, ort-package, slim or "
    "triton.",
)
@options.out(default="packages", show_default=True, metavar="DIR", help="The folder for packages.")
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the model in the package; default: that of its recipe.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="[NAME=]FOLDER",
    help="For the format lora: a LoRA adapter that PEFT has saved; repeat for several.",
)
@click.option(
    "--compiled",
    is_flag=True,
    help="For the format ort-package: also the engine that ONNX Runtime's TensorRT-RTX provider "
    "compiles here, on the device of the artifact.",
)
@click.option(
    "--dynamic",
    is_flag=True,
    help="For the format compressed-tensors: inputs of int8 and fp8 layers get a scale for each "
    "token at run time.",
)
@options.option_under(
    "Target",
    "-p",
    "--precision",
    type=param_types.PRECISION,
    help="For a fleet with several precisions for a target: the one to package.",
)
@options.output
@options.calls("optkit.verbs.cli.package:package")
def package() -> None:
    """Write PATH, an artifact or a fleet, in the layout that another program reads.

    The package is the folder DIR/NAME-FORMAT, and needs no other file. Every file of the artifact
    is verified first. An older package of the same name is replaced in one operation.
    """


@options.command(
    "optkit sign artifacts/digits-vit-l4-int8 --key private.pem",
    "optkit sign artifacts/digits-vit-l4-int8 --key private.pem --certificate mine.pem "
    "--certificate-chain between.pem",
)
@click.argument("artifact", type=param_types.ARTIFACT)
@click.option(
    "--key",
    required=True,
    type=param_types.PEM,
    help="The private key: elliptic curve, PEM, without a password.",
)
@click.option("--certificate", type=param_types.PEM, help="The certificate for it, PEM.")
@click.option(
    "--certificate-chain",
    type=param_types.PEM,
    multiple=True,
    help="The certificates above it, PEM; repeat for several files.",
)
@click.option(
    "--ignore-paths",
    multiple=True,
    metavar="PATH",
    help="A file or folder of ARTIFACT that is not signed; repeat for several. The signed manifest "
    "still has its digest.",
)
@options.output
@options.calls("optkit.verbs.cli.sign:sign")
def sign() -> None:
    """Sign every file of ARTIFACT, by OpenSSF Model Signing 1.0.

    Every file is verified first. The signature is the file model.sig in ARTIFACT. No server is
    asked.
    """


@options.command(
    "optkit verify artifacts/digits-vit-l4-int8",
    "optkit verify artifacts/digits-vit-l4-int8 --key public.pem",
)
@click.argument("artifact", type=param_types.ARTIFACT)
@click.option("--key", type=param_types.PEM, help="The public key of the signer, PEM.")
@click.option(
    "--certificate-chain",
    type=param_types.PEM,
    multiple=True,
    help="The root certificates that you trust, PEM; repeat for several files.",
)
@click.option(
    "--ignore-unsigned-files",
    is_flag=True,
    help="Accept files that neither the manifest nor the signature lists.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="If the signature verifies: from now on this machine opens the engines of ARTIFACT, which "
    "can run code.",
)
@options.output
@options.calls("optkit.verbs.cli.sign:verify")
def verify() -> None:
    """Compare every file of ARTIFACT with its manifest, and verify its signature.

    Without --key and --certificate-chain only the files are compared. Exit code 7 if a file was
    changed, added or removed (the error names it), or if somebody else signed it.
    """


@options.command(
    "optkit attest artifacts/digits-vit-l4-int8 --out attestations",
    "optkit attest artifacts/digits-vit-l4-int8 --key private.pem",
)
@click.argument("artifact", type=param_types.ARTIFACT)
@options.out(
    default="attestations", show_default=True, metavar="DIR", help="The folder for the files."
)
@click.option(
    "--key",
    type=param_types.PEM,
    help="Sign the provenance with this private key: elliptic curve, PEM, without a password.",
)
@options.output
@options.calls("optkit.verbs.cli.attest:attest")
def attest() -> None:
    """Write the bill of materials (CycloneDX) and the provenance (in-toto, SLSA) of ARTIFACT.

    Every file of ARTIFACT is verified first. The bill of materials has the figures with their
    intervals and their evidence, the tools, and the digest of every file.
    """


_drawing = options.filling(
    "optkit.verbs.cli.generate:SamplingChoice",
    "drawing",
    options.under(
        "Sampling",
        click.option("--temperature", type=float, metavar="T", help="Sample, at this temperature."),
        click.option(
            "--top-k", type=int, metavar="K", help="Sample among the K most likely tokens."
        ),
        click.option(
            "--top-p",
            type=float,
            metavar="P",
            help="Sample among the most likely tokens with total probability P.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            metavar="N",
            help="Sample; the same seed gives the same text. Default 0.",
        ),
    ),
)

_drafts = options.filling(
    "optkit.verbs.cli.generate:Drafts", "drafts",
    options.under(
        "Speculative decoding",
        click.option("--prompt-lookup", is_flag=True,
                     help="Draft tokens from the text so far, and verify several in one run: the "
                     "same text in fewer runs."),
        click.option("--draft", "draft_model", type=click.Path(path_type=Path), metavar="ARTIFACT",
                     help="Draft tokens with this smaller model, which has the same tokenizer."),
        click.option("--draft-tokens", type=click.IntRange(min=1), metavar="N",
                     help="Draft N tokens for each run. Default: adapts to acceptance and times."),
    ),
)  # fmt: skip

_texts = options.under(
    "Data",
    click.option("--prompt", "prompts", multiple=True, metavar="TEXT",
                 help="A text to continue or to read; repeat for several, which run in one "
                 "batch."),
    click.option("--prompt-file", "files", multiple=True,
                 type=param_types.Existing("name a text file", file=True),
                 help="A file whose whole text is a prompt."),
    click.option("--audio", multiple=True, metavar="FILE.wav",
                 type=click.Path(exists=True, dir_okay=False),
                 help="For a speech model: a recording to transcribe; several run in one batch."),
)  # fmt: skip

_host = options.under(
    "Where it runs",
    click.option(
        "--adapter",
        metavar="NAME",
        help="Run with this adapter of an ARTIFACT that has several to switch.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="Default: the cores this process may use.",
    ),
    click.option(
        "--trusted",
        is_flag=True,
        help="Open the engine of an ARTIFACT from another machine; only if you know its author.",
    ),
)


@options.command(
    'optkit generate artifacts/my-llama-cpu-int4 --prompt "def main("',
    "optkit generate artifacts/my-llama-cpu-int4 --prompt-file module.py --prompt-lookup",
    "optkit generate artifacts/my-whisper-cpu-int8 --audio talk.wav",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@_texts
@options.option_under(
    "Limits",
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="The most tokens that are generated for each prompt.",
)
@_drawing
@_drafts
@_host
@options.output
@options.calls("optkit.verbs.cli.generate:generate")
def generate() -> None:
    """Generate text with the model in ARTIFACT: greedy, or sampled if an option asks for it.

    A decoder continues a prompt. An encoder-decoder reads a text or a recording and writes another
    text. The text goes to stdout while it is generated, after its prompt if there is one; the speed
    of each phase goes to stderr. --json prints all of this and the token ids.
    """
