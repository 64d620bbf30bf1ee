"""genai_config.json says what the graph and the model's files say; the real library loads it."""

from __future__ import annotations

import json
import subprocess
import venv
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

import optkit
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.decoder import Decoder
from optkit.road.packaging import genai
from optkit.satellites.generation import generate
from tests.generation import families
from tests.generation.families import PROMPTS
from tests.packaging import variants

CACHES = tuple(
    TensorInfo(f"past_key_values.{layer}.{part}", "float32", ("batch", 2, "past_sequence", 16))
    for layer in range(3)
    for part in ("key", "value")
)
DECODER = Decoder(CACHES, 320, positions=True)
CONFIG = {"max_position_embeddings": 512, "num_attention_heads": 4, "hidden_size": 64,
          "eos_token_id": 7}  # fmt: skip


def config(decoder: Decoder, **files: dict[str, object]) -> dict[str, dict[str, object]]:
    found = genai.files(
        decoder, {f"{name}.json": json.dumps(content).encode() for name, content in files.items()}
    )
    described: dict[str, dict[str, object]] = json.loads(found["genai_config.json"])
    return described


def test_it_describes_the_graph() -> None:
    found = config(DECODER, config=CONFIG)
    model, decoder = found["model"], found["model"]["decoder"]
    assert (model["context_length"], model["vocab_size"]) == (512, 320)
    assert model["eos_token_id"] == [7] and "bos_token_id" not in model
    assert isinstance(decoder, dict)
    assert decoder["num_hidden_layers"] == 3
    assert (decoder["num_key_value_heads"], decoder["head_size"]) == (2, 16)
    assert (decoder["num_attention_heads"], decoder["hidden_size"]) == (4, 64)
    names = {name % 2 if "%d" in name else name for name in decoder["inputs"].values()}
    assert names == {"input_ids", "attention_mask", "position_ids", CACHES[4].name, CACHES[5].name}
    assert found["search"]["past_present_share_buffer"] is False


def test_one_buffer_is_promised_where_every_cache_can_be_one() -> None:
    present = {"config.json": json.dumps(CONFIG).encode()}
    every = [*DECODER.carried]
    for in_place, shared in ((every, True), (every[1:], False)):
        found = json.loads(genai.files(DECODER, present, in_place)[genai.FILE])
        assert found["search"]["past_present_share_buffer"] is shared


def test_a_graph_without_positions_is_fed_none() -> None:
    found = config(Decoder(CACHES, 320, positions=False), config=CONFIG)["model"]["decoder"]
    assert isinstance(found, dict) and "position_ids" not in found["inputs"]


def test_the_generation_config_sets_ends_and_search() -> None:
    generation = {"eos_token_id": [3, 4], "do_sample": True, "temperature": 0.5, "top_k": None}
    found = config(DECODER, config=CONFIG, generation_config=generation)
    assert found["model"]["eos_token_id"] == [3, 4]
    search = found["search"]
    assert (search["do_sample"], search["temperature"]) == (True, 0.5) and "top_k" not in search


def test_other_models_get_no_file() -> None:
    present = {"config.json": json.dumps(CONFIG).encode()}
    assert genai.files(DECODER, present).keys() == {"genai_config.json"}
    assert genai.files(None, present) == {}
    coded = replace(DECODER, cache=tuple(replace(info, dtype="int8") for info in CACHES))
    assert genai.files(coded, present) == {}  # its releases feed no codes
    assert genai.files(DECODER, {}) == {}
    assert genai.files(DECODER, {"config.json": b'{"hidden_size": 64}'}) == {}
    with pytest.raises(InputRefused, match=r"config\.json"):
        genai.files(DECODER, {"config.json": b"[]"})


ROOT = Path(__file__).resolve().parents[2]
END = 319
RUN = """
import json, sys
import onnxruntime_genai as og

way, folder = sys.argv[1:]
if way == "draft":
    from snippet import with_draft

    model = with_draft(folder, folder)
else:
    model = og.Model(folder)
tokenizer = og.Tokenizer(model)
found, proposed = [], 0
for prompt in json.load(sys.stdin):
    ids = tokenizer.encode(prompt)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + 64, do_sample=False)
    if way == "n-gram":
        parameters.set_speculative_options(ngram_size=2, ngram_chained_lookup=True)
    generator = og.Generator(model, parameters)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    found.append([int(token) for token in generator.get_sequence(0)])
    if way != "plain":
        proposed += generator.get_speculative_stats()["draft_tokens_proposed"]
print(json.dumps([found, proposed]))
"""


@pytest.fixture(scope="module")
def genai_python() -> Path:
    """An interpreter of its own with the library: it insists on the CPU wheel of ONNX Runtime."""
    folder = Path(platformdirs.user_cache_dir("optkit", appauthor=False)) / "environments" / "genai"
    wanted = ("onnxruntime-genai==0.18.0", "onnxruntime==1.31.1")
    python, record = folder / "bin" / "python", folder / "requirements.json"
    if not record.exists() or json.loads(record.read_text()) != list(wanted):
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
        record.write_text(json.dumps(wanted))
    return python


SWITCH = """
import json, sys
import onnxruntime_genai as og
from snippet import continued

folder, names = sys.argv[1], sys.argv[2:]
model = og.Model(folder)
tokenizer, adapters = og.Tokenizer(model), og.Adapters(model)
for name in names:
    adapters.load(f"{folder}/adapters/{name}.onnx_adapter", name)
found = {}
for name in ("", *names):
    texts = found[name] = []
    for prompt in json.load(open("prompts.json")):
        ids = tokenizer.encode(prompt)
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=len(ids) + 24, do_sample=False)
        generator = og.Generator(model, parameters)
        if name:
            generator.set_active_adapter(adapters, name)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        texts.append([int(token) for token in generator.get_sequence(0)][len(ids):])
        if name:
            assert continued(folder, name, prompt, 24) == tokenizer.decode(texts[-1])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_the_library_switches_adapters(precision: str, genai_python: Path, tmp_path: Path) -> None:
    """Each writes what optkit writes, and in FP32 what the model with the adapter in its weights
    does."""
    families.write("llama", tmp_path / "llama", END)
    folders = {name: tmp_path / name for name in ("one", "two")}
    for seed, folder in enumerate(folders.values()):
        variants.write_adapter(tmp_path / "llama", folder, seed)
    built = families.build(tmp_path / "llama", tmp_path, precision)
    document = optkit.package(built.path, format="lora", out=tmp_path, adapters=folders)
    artifact = optkit.load(Path(document["folder"]) / built.name)
    (tmp_path / "prompts.json").write_text(json.dumps(PROMPTS))
    page = (ROOT / "docs/how_to/generate.md").read_text().partition("### Adapters in ONNX")[2]
    (tmp_path / "snippet.py").write_text(page.split("```python")[1].split("```")[0])
    done = subprocess.run(
        [str(genai_python), "-c", SWITCH, str(artifact.path), *folders],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # no warning for each matrix
    found = json.loads(done.stdout)
    assert len({json.dumps(texts) for texts in found.values()}) == 3
    for name, texts in found.items():
        for guesses in (None, optkit.Speculation(), optkit.Speculation(built, 2)):
            ours = generate(
                artifact, PROMPTS, max_new_tokens=24, adapter=name or None, speculation=guesses
            )
            assert texts == [
                [*text.tokens, *([END] if text.finish_reason == "stop" else [])]
                for text in ours.texts
            ]
    for name, folder in folders.items() if precision == "fp32" else ():
        assert found[name] == variants.merged_texts(tmp_path / "llama", folder, PROMPTS, 24)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_library_loads_the_artifact_and_writes_the_same(
    family: str, genai_python: Path, tmp_path: Path
) -> None:
    families.write(family, tmp_path / family, END)
    artifact = families.build(tmp_path / family, tmp_path)
    ours = generate(artifact, PROMPTS, max_new_tokens=64)
    assert sum(len(text.tokens) for text in ours.texts) > 64
    page = (ROOT / "docs/how_to/generate.md").read_text()
    (tmp_path / "snippet.py").write_text(page[page.index("import json, os") :].split("```")[0])
    for way in ("plain", "n-gram", "draft"):
        done = subprocess.run(
            [str(genai_python), "-c", RUN, way, str(artifact.path)], input=json.dumps(PROMPTS),
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts, proposed = json.loads(done.stdout)
        assert (proposed > 0) == (way != "plain")
        for found, text in zip(texts, ours.texts, strict=True):
            ended = [END] if text.finish_reason == "stop" else []
            assert found == [*text.prompt_tokens, *text.tokens, *ended]
