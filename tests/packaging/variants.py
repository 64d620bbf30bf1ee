"""Decoders that other programs hold, with random weights, as Hugging Face folders."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
import transformers as hf
from tokenizers import Regex, normalizers, pre_tokenizers

from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.artifact import write as write_artifact
from tests.generation import families

VOCABULARY = 400
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def write(name: str, folder: Path) -> hf.PreTrainedTokenizerFast:
    """A model and its tokenizer. name: llama, llama-linear, llama-llama3, mistral-window, qwen2 or
    qwen3."""
    torch.manual_seed(3)
    model = _network(name).eval()
    for key, parameter in model.named_parameters():
        if key.endswith((".bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=float("norm" in key), std=0.2)
    model.save_pretrained(folder)
    tokenizer = families.tokenizer(families.PROMPTS)
    if name.startswith("qwen"):  # transformers gives every tokenizer of a Qwen this form
        cut = pre_tokenizers.Split(Regex(_QWEN), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    tokenizer.save_pretrained(folder)
    return tokenizer


_SENTENCEPIECE = """
import json, sys
import sentencepiece
from transformers import LlamaTokenizer

folder, size, texts, trained_on = sys.argv[1:]
texts = json.loads(texts)
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(open(trained_on).read().splitlines()), model_type="bpe",
    model_prefix=f"{folder}/tokenizer", vocab_size=int(size), byte_fallback=True,
    character_coverage=0.99, split_digits=True, allow_whitespace_only_pieces=True,
    remove_extra_whitespaces=False, normalization_rule_name="identity", minloglevel=2,
)
LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)
trained = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
print(json.dumps(trained.encode(texts)))
"""


def write_sentencepiece(python: Path, folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer as Llama 2 has one, converted by transformers, and what SentencePiece itself
    makes of these texts. `python`: an interpreter with sentencepiece and transformers."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    command = [str(python), "-c", _SENTENCEPIECE, str(folder), str(VOCABULARY), json.dumps(texts)]
    done = subprocess.run([*command, inspect.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_adapter(base: Path, folder: Path, seed: int = 4) -> None:
    """A LoRA adapter that changes what the model computes."""
    import peft

    model = hf.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, config)
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)


def merged_texts(base: Path, folder: Path, prompts: Sequence[str], length: int) -> list[list[int]]:
    """The greedy tokens that transformers writes with an adapter merged into the weights."""
    import peft

    model = hf.AutoModelForCausalLM.from_pretrained(base)
    merged = peft.PeftModel.from_pretrained(model, folder).merge_and_unload().eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(base)
    found = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        written = merged.generate(ids, max_new_tokens=length, do_sample=False)
        found.append(written[0, ids.shape[1] :].tolist())
    return found


def with_zero_points(built: Artifact, out: Path) -> Artifact:
    """An artifact whose 4-bit codes have zero points, which optkit's own builds do not have. The
    codes and scales are the same, so the weights are others."""
    model = graph.load(built.model_path)
    rng = np.random.default_rng(5)
    for node in model.graph:
        if node.op_type == "MatMulNBits" and node.attributes["bits"].as_int() == 4:
            rows, columns = (node.attributes[name].as_int() for name in ("N", "K"))
            blocks = -(-columns // node.attributes["block_size"].as_int())
            zeros = rng.integers(5, 12, (rows, blocks + blocks % 2)).astype(np.uint8)
            packed = zeros[:, 0::2] | zeros[:, 1::2] << np.uint8(4)
            value = ir.val(f"{node.name}_zero", const_value=ir.tensor(packed.reshape(-1)))
            model.graph.register_initializer(value)
            node.resize_inputs(max(4, len(node.inputs)))
            node.replace_input_with(3, value)
    return _rewritten(built, model, out, "zero")


def with_float_products(built: Artifact, out: Path) -> Artifact:
    """An artifact whose kernels of MatMulNBits, and of QMoE in 4 bits, round no activations to
    8 bits."""
    model = graph.load(built.model_path)
    for node in model.graph:
        if node.op_type in ("MatMulNBits", "QMoE"):
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)
    return _rewritten(built, model, out, "float")


def _rewritten(built: Artifact, model: graph.Graph, out: Path, word: str) -> Artifact:
    """The artifact with another graph, in folder NAME-WORD."""
    graph.save(model, out / f"{word}.onnx")
    content: dict[str, Path | bytes] = {name: built.path / name for name in built.manifest.files}
    content["model.onnx"] = out / f"{word}.onnx"
    manifest = replace(built.manifest, name=f"{built.manifest.name}-{word}", files={})
    return write_artifact(out, manifest, content)


def _network(name: str) -> hf.PreTrainedModel:
    if name == "mistral-window":
        return hf.MistralForCausalLM(hf.MistralConfig(**_SIZES, head_dim=16, sliding_window=64))
    if name == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**_SIZES, tie_word_embeddings=True))
    if name == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_SIZES, head_dim=32))
    scaling = {
        "llama": {"rope_type": "default"},
        "llama-linear": {"rope_type": "linear", "factor": 4.0},
        "llama-llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    }[name]  # fmt: skip
    rotation = {"rope_theta": 10000.0, **scaling}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_SIZES, rope_parameters=rotation))
