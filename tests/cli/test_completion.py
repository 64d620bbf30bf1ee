"""The completions of a shell, and the script that requests them."""

from __future__ import annotations

from typing import Any

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from optkit.verbs.cli import optkit


def completed(*words: str) -> list[CompletionItem]:
    """What fits the last word."""
    shell = ShellComplete(optkit, {}, "optkit", "_OPTKIT_COMPLETE")
    return shell.get_completions(list(words[:-1]), words[-1])


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["bui"], ["build"]),
        (["build", "--targ"], ["--target"]),
        (["build", "--target", "h100"], ["h100-nvl", "h100-pcie", "h100-sxm"]),
        (["build", "-t", "l4,t"], ["l4,t4"]),
        (["build", "-p", "fp16,int8"], ["fp16,int8", "fp16,int8-weight-only"]),
        (["quantize", "-p", "bf"], ["bf16"]),
        (["plan", "--recipe", "digits-v"], ["digits-vit"]),
        (["tune", "--eval", "perp"], ["perplexity"]),
        (["targets", "rtx4"], ["rtx4090"]),
        (["plan", "--train", "full,q"], ["full,qlora"]),
    ],
)
def test_names_are_completed(words: list[str], values: list[str]) -> None:
    assert [item.value for item in completed(*words)] == values


@pytest.mark.parametrize("words", [["build", "./mod"], ["build", "--recipe", "./my"],
                                   ["build", "--eval-data", "x"], ["inspect", "x"]])  # fmt: skip
def test_paths_are_left_to_the_shell(words: list[str]) -> None:
    assert [item.type for item in completed(*words)] == ["file"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_printed(shell: str, optkit_here: Any) -> None:
    done = optkit_here("completion", shell)
    assert done.code == 0 and f"_OPTKIT_COMPLETE={shell}_complete" in done.out
    assert optkit_here("completion", "csh").told("SHELL", "'csh'", "bash, zsh, fish").code == 2
