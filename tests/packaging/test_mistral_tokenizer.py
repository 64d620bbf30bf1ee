"""llama.cpp tokenizes as SentencePiece does, with the tokenizer of Mistral 7B, whose file is in the
package mistral-common."""

from __future__ import annotations

import argparse
import email.message
import inspect
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from optkit.road.packaging.decoders import Architecture, RotaryParameters
from tests.environments import ROOT, output
from tests.packaging import programs

pytestmark = pytest.mark.slow

CONVERT = """
import json, sys
from pathlib import Path
import sentencepiece
from transformers import LlamaTokenizer

folder, texts = sys.argv[1:]
LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)
model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
print(json.dumps(model.encode(json.loads(Path(texts).read_text()))))
"""
TOKENIZE = """
import json, sys
from pathlib import Path
import llama_cpp

file, texts = sys.argv[1:]
model = llama_cpp.Llama(file, vocab_only=True, verbose=False)
print(json.dumps([model.tokenize(text.encode(), add_bos=False, special=False)
                  for text in json.loads(Path(texts).read_text())]))
"""
SIZE = 32000
LLAMA = Architecture(
    "llama", layers=1, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16,
    vocabulary=SIZE, epsilon=1e-6, context=128, window=None, theta=1e4, rotation=RotaryParameters(),
)  # fmt: skip


def texts() -> list[str]:
    """Paragraphs of code, most with spaces at their beginning, and other scripts."""
    code = [Path(str(m.__file__)).read_text() for m in (argparse, email.message, inspect, json)]
    paragraphs = [text for file in code for text in file.split("\n\n") if text]
    return [
        *paragraphs,
        "日本語のテキスト 🥺",
        "Привет мир",
        "مرحبا",
        "a" * 50,
        "ﬁ ① Å",
        " ",
        "\n\t",
    ]


def test_the_tokens_are_those_of_sentencepiece(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from optkit.road.packaging.gguf import network, vocabulary

    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts()))
    python = programs.mlx_python()
    download = ["-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path]
    output([python, *download, "mistral-common==1.13.1"], ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        model = archive.read("mistral_common/data/tokenizer.model.v1")
    (tmp_path / "tokenizer.model").write_bytes(model)
    expected = json.loads(output([python, "-c", CONVERT, tmp_path, file], ROOT).splitlines()[-1])
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    network.describe(writer, LLAMA)
    vocabulary.read(tmp_path, SIZE).write(writer, tmp_path)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    command = [programs.llama_python(), "-c", TOKENIZE, tmp_path / "vocabulary.gguf", file]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{len(found)} texts, {sum(map(len, found))} tokens")
    assert found == expected
