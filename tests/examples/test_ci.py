"""The files of examples/ci: valid by the schemas of their systems, with commands that exist."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from optkit.verbs.cli import optkit
from tests.environments import environment, output

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"
FILES = sorted(CI.iterdir())


def lines(file: Path) -> list[str]:
    """The shell commands of a file that call optkit; lines that end with a backslash are joined."""
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^[\s-]*(?:run: )?(optkit [^#\n]*)$", text, re.M)
    return [line.replace("…", "").strip() for line in found]


def test_every_command_has_options_that_exist(tmp_path: Path) -> None:
    every = [line for file in FILES for line in lines(file)]
    assert len(every) >= 7
    for line in every:
        name, *arguments = shlex.split(line)[1:]
        command = optkit.commands[name]
        if isinstance(command, click.Group):
            name, *arguments = arguments
            command = command.commands[name]
        command.make_context(name, arguments)  # raises for an option or value that does not exist


def test_the_job_of_kubernetes_calls_a_command_that_exists() -> None:
    job = YAML(typ="safe").load(CI / "kubernetes-job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, name, *arguments = container["command"]
    assert program == "optkit"
    optkit.commands[name].make_context(name, arguments)


def test_the_page_names_every_file() -> None:
    page = (CI.parents[1] / "docs/how_to/ci.md").read_text(encoding="utf-8")
    assert all(file.name in page for file in FILES)


@pytest.mark.slow
def test_files_are_valid_for_their_systems() -> None:
    python = environment(
        "ci-files", "check-jsonschema==0.39.*", "kubernetes-validate==1.37.*", "zizmor==1.32.*"
    )
    programs = python.parent
    check = programs / "check-jsonschema"
    workflow, gitlab = CI / "github-actions.yml", CI / "gitlab-ci.yml"
    output([check, "--builtin-schema", "vendor.github-workflows", workflow], CI)
    output([check, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", gitlab],
           CI)  # fmt: skip
    output([programs / "kubernetes-validate", "--strict", CI / "kubernetes-job.yaml"], CI)
    found = output(
        [programs / "zizmor", "--offline", "--pedantic", "--format=json-v1", workflow], CI
    )
    assert json.loads(found) == []


@pytest.mark.slow
def test_ray_takes_the_cluster() -> None:
    code = (
        "import sys, yaml\n"
        "from ray.autoscaler._private.util import prepare_config, validate_config\n"
        "validate_config(prepare_config(yaml.safe_load(open(sys.argv[1]))))\n"
    )
    output([sys.executable, "-c", code, CI / "ray-cluster.yaml"], CI)
