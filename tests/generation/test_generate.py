"""Artifacts that write, and those that cannot: from Python and from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optkit.facts.errors import InputRefused, IntegrityError, UsageError
from optkit.facts.evidence import Evidence
from optkit.ground.artifact import Artifact
from optkit.satellites.generation import Sampling, Speculation, generate
from tests.conftest import valid
from tests.generation.conftest import POSITIONS, WIDTH, Network, words, write_artifact

ROOT = Path(__file__).resolve().parents[2]

Make = Callable[..., Artifact]


def test_texts_are_those_of_the_network(made: Make, network: Network) -> None:
    told: dict[int, str] = {0: "", 1: ""}

    def hear(row: int, text: str) -> None:
        told[row] += text

    found = generate(made(), ["w1 w2 w3", "w9"], max_new_tokens=6, heard=hear, threads=1)
    for text, prompt in zip(found.texts, ([1, 2, 3], [9]), strict=True):
        assert text.prompt_tokens == prompt
        assert text.tokens == network.continued(prompt, 6)
        assert text.text == "".join(f" w{token}" for token in text.tokens)
    assert [told[row] for row in (0, 1)] == [text.prompt + text.text for text in found.texts]
    assert (found.prefill.tokens, found.decode.tokens) == (4, 10)
    assert found.prefill.seconds > 0 < found.decode.seconds
    assert (found.backend, found.evidence, found.note) == (
        "onnxruntime", Evidence.MEASURED, None,
    )  # fmt: skip


@pytest.mark.parametrize("listed", [False, True])
def test_it_ends_where_the_models_files_say(made: Make, network: Network, listed: bool) -> None:
    free = network.continued([5], 8)
    end = free[3]
    artifact = made(eos_token_id=[end, 99] if listed else end)
    (text,) = generate(artifact, ["w5"], max_new_tokens=8).texts
    assert text.tokens == free[: free.index(end)] and text.finish_reason == "stop"


def test_the_generation_config_counts_more_than_the_config(made: Make, network: Network) -> None:
    free = network.continued([5], 8)
    files = {
        "tokenizer.json": words().to_str().encode(),
        "config.json": json.dumps({"eos_token_id": free[0]}).encode(),
        "generation_config.json": json.dumps({"eos_token_id": None, "bos_token_id": 1}).encode(),
    }
    assert generate(made(files), ["w5"]).texts[0].tokens == []
    last = next(token for token in range(12) if token not in free)
    files["generation_config.json"] = json.dumps({"eos_token_id": last}).encode()
    assert generate(made(files), ["w5"], max_new_tokens=8).texts[0].tokens == free


def test_it_stops_where_the_context_ends(made: Make) -> None:
    prompt = " ".join(["w1"] * (POSITIONS - 3))
    (text,) = generate(made(), [prompt], max_new_tokens=50).texts
    assert len(text.tokens) == 3 and text.finish_reason == "length"


def test_a_seed_gives_the_same_text_again(made: Make) -> None:
    artifact = made()
    texts = [
        generate(artifact, ["w1"], sampling=Sampling(seed=seed)).texts[0].tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_what_cannot_be_continued_is_refused(made: Make, tmp_path: Path) -> None:
    config = {"config.json": b"{}"}
    tokenizer = {"tokenizer.json": words().to_str().encode()}
    with pytest.raises(InputRefused, match="no tokenizer"):
        generate(made(config), ["w1"])
    with pytest.raises(InputRefused, match=r"config\.json: not JSON"):
        generate(made({**tokenizer, "config.json": b"{"}), ["w1"])
    with pytest.raises(InputRefused, match=r"prompt 1: the prompt has 40 tokens.* context 40"):
        generate(made(), ["w1", " ".join(["w1"] * POSITIONS)])
    with pytest.raises(InputRefused, match="prompt 0: the prompt has no tokens"):
        generate(made(), [""])
    with pytest.raises(InputRefused, match="prompt 1: the prompt is not UTF-8 text"):
        generate(made(), ["w1", os.fsdecode(b"w1 \xff")])
    with pytest.raises(UsageError, match="nothing to generate"):
        generate(made(), [])


@pytest.mark.parametrize("wrong", ["changed", "missing"])
def test_nothing_is_said_of_an_artifact_that_was_changed(made: Make, wrong: str) -> None:
    artifact, heard = made(), list[str]()
    file = artifact.path / "tokenizer.json"
    content = file.read_bytes()
    file.unlink() if wrong == "missing" else file.write_bytes(content.replace(b"w1", b"w0"))
    with pytest.raises(IntegrityError, match=rf"tokenizer\.json (was|is) {wrong}"):
        generate(artifact, ["w1"], heard=lambda row, text: heard.append(text))
    assert not heard


def test_without_a_mask_prompts_of_one_length_alone_are_a_batch(
    made: Make, network: Network
) -> None:
    artifact = made(masked=False)
    texts = generate(artifact, ["w1 w2", "w5 w6"], max_new_tokens=6).texts
    assert [text.tokens for text in texts] == [
        network.continued(prompt, 6) for prompt in ([1, 2], [5, 6])
    ]
    with pytest.raises(
        InputRefused, match=r"1 to 2 tokens cannot be one batch.*attention_mask"
    ) as no:
        generate(artifact, ["w1 w2", "w5"])
    assert "one by one" in str(no.value.hint)


def test_another_model_is_no_decoder(tmp_path: Path) -> None:
    import onnx

    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[n] y) {y = Abs(x)}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "abs.onnx")
    artifact = write_artifact(tmp_path / "abs.onnx", {}, tmp_path)
    with pytest.raises(InputRefused, match="not a decoder") as refused:
        generate(artifact, ["w1"])
    assert refused.value.exit_code == 5 and "Hugging Face" in str(refused.value.hint)


def test_the_command_prints_the_text_and_its_pace(made: Make, network: Network) -> None:
    artifact = made()
    expected = "w4 w2" + "".join(f" w{token}" for token in network.continued([4, 2], 5))
    done = optkit("generate", artifact.path, "--prompt", "w4 w2", "--max-new-tokens", "5")
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")
    assert "prefill 2 tokens" in done.stderr and "decode 4 tokens" in done.stderr


def test_json_holds_every_text_and_both_phases(made: Make, tmp_path: Path) -> None:
    artifact = made()
    (tmp_path / "prompt.txt").write_text("w7 w8\n", encoding="utf-8-sig")
    done = optkit("generate", artifact.path, "--prompt", "w1", "--prompt-file",
                  tmp_path / "prompt.txt", "--max-new-tokens", "3", "--json", "-q")  # fmt: skip
    found = valid(json.loads(done.stdout))
    assert (done.returncode, found["schema"], found["status"]) == (0, "optkit.generate/v1", "ok")
    assert [text["prompt_tokens"] for text in found["texts"]] == [[1], [7, 8]]
    assert all(len(text["tokens"]) == 3 for text in found["texts"])
    assert found["prefill"]["tokens"] == 3 and found["decode"]["tokens"] == 4
    # keys and values of one head
    assert found["cache"] == {"format": "float32", "token_bytes": 2 * WIDTH * 4, "window": None}
    for phase in (found["prefill"], found["decode"]):
        assert phase["evidence"] == "measured"
        assert phase["tokens_per_second"] == pytest.approx(
            phase["tokens"] / phase["seconds"], rel=1e-2
        )


def test_the_command_drafts_and_tells_what_it_saved(
    made: Make, network: Network, tmp_path: Path
) -> None:
    artifact = made()
    prompts = ("--prompt", "w1 w2", "--prompt", "w5", "--max-new-tokens", "20", "--json", "-q")
    for drafts, method in (
        (("--prompt-lookup",), "prompt lookup"),
        (("--draft", artifact.path, "--draft-tokens", "3"), "draft model"),
    ):
        done = optkit("generate", artifact.path, *prompts, *drafts)
        found = valid(json.loads(done.stdout))
        assert [text["tokens"] for text in found["texts"]] == [
            network.continued(prompt, 20) for prompt in ([1, 2], [5])
        ]
        counts = found["speculation"]
        assert counts["method"] == method
        assert found["decode"]["tokens"] == counts["target_runs"] + counts["accepted"] == 38
        assert counts["tokens_per_run"] == pytest.approx(38 / counts["target_runs"], abs=1e-3)
    assert (counts["drafted"], counts["accepted"], counts["acceptance_rate"]) == (28, 28, 1.0)
    assert (counts["plain_runs"], counts["gain"]) == (0, None)
    told = optkit("generate", artifact.path, *prompts[:2], "--draft", artifact.path)
    assert "draft model" in told.stderr and "drafted tokens accepted" in told.stderr


def test_a_draft_model_with_another_tokenizer_is_refused(made: Make, tmp_path: Path) -> None:
    import tokenizers

    artifact = made()
    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w0": 1, "w1": 0}, "w0"))
    files = {"tokenizer.json": other.to_str().encode(), "config.json": b"{}"}
    draft = write_artifact(tmp_path / "model.onnx", files, tmp_path / "draft")
    heard: list[str] = []
    with pytest.raises(InputRefused, match="another tokenizer") as refused:
        generate(artifact, ["w1"], speculation=Speculation(draft),
                 heard=lambda row, text: heard.append(text))  # fmt: skip
    assert refused.value.where == str(draft.path) and not heard
    with pytest.raises(UsageError, match="tokens is 0"):
        Speculation(tokens=0)


def test_the_command_refuses_with_the_documented_codes(made: Make, tmp_path: Path) -> None:
    artifact = made()
    for code, told, *arguments in (
        (2, "no prompt", artifact.path),
        (2, "temperature is 0.0", artifact.path, "--prompt", "w1", "--temperature", "0"),
        (2, "drafts nothing alone", artifact.path, "--prompt", "w1", "--draft-tokens", "2"),
        (2, "two sources", artifact.path, "--prompt", "w1", "--prompt-lookup", "--draft", "x"),
        (5, "not an artifact", artifact.path, "--prompt", "w1", "--draft", tmp_path / "nosuch"),
        (5, "not an artifact", tmp_path / "nosuch", "--prompt", "w1"),
        (5, "context 40", artifact.path, "--prompt", " ".join(["w1"] * POSITIONS)),
    ):
        done = optkit("generate", *arguments)
        assert (done.returncode, done.stdout) == (code, "") and told in done.stderr


def optkit(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = (sys.executable, "-c", "from optkit.cli import main; main()")
    return subprocess.run(
        [*program, *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
