"""The format `mlx`: a decoder as mlx-lm reads it, for Apple's computers.

model.safetensors          weights under the names of the Hugging Face model; codes in MLX's form
config.json, tokenizer …   those of the model, with the keys that mlx-lm needs
README.md                  the card: every figure of the artifact with its evidence

mlx-lm has a network of its own for each family; it gets the artifact's numbers. Codes are carried
over bit by bit where MLX has the same blocks. Neither mlx nor mlx-lm is needed.

quantized   MLX's form of codes
model_args  config.json, and the biases of the networks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from optkit.craft.quantization.qdq.codes import Codes, same
from optkit.facts.errors import UsageError
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import CONFIG
from optkit.ground.intake import COMPANIONS
from optkit.road.packaging import checkpoint_card
from optkit.road.packaging.decoders import Architecture, Parameter, caveats, parameters
from optkit.road.packaging.decoders.architecture import EMBEDDING, HEAD
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.mlx import model_args
from optkit.road.packaging.mlx.quantized import MlxStorage, store
from optkit.road.packaging.shards import ShardWriter
from optkit.road.packaging.variants import PackageSubject

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_CARD = checkpoint_card.CardWords(
    library="mlx",
    tags=("mlx",),
    form="MLX's form",
    use="""\
```sh
pip install mlx-lm
mlx_lm.generate --model . --prompt "Hello"
```""",
    remark="MLX computes activations in its own way, and nothing was measured with it.",
)
_EMBEDDING, _HEAD = f"{EMBEDDING}.weight", f"{HEAD}.weight"


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (a fleet, another family, no tokenizer, a graph that mlx-lm has no network
    for), InputRefused (config.json)."""
    artifact = subject.only("mlx").artifact
    architecture = Architecture.of(artifact)
    model_args.check(architecture)
    companions = _companions(artifact)
    found = parameters(graph.load(artifact.model_path), architecture)
    biases = model_args.biases(architecture, found)
    embedding = found[_EMBEDDING].read()
    tied = same(embedding, found[_HEAD].read())
    dtype = (embedding.scales if isinstance(embedding, Codes) else embedding).dtype
    written = {**found, **biases.zeros}
    if tied:
        del written[_HEAD]
    weights, stored = _stored(written, dtype, scratch)
    notes = (*_notes(stored, dtype), *caveats(artifact, architecture, "mlx-lm"))
    switches = {"tie_word_embeddings": tied, **biases.switches}
    content = {
        **companions,
        **weights,
        CONFIG: model_args.config(artifact.path, architecture, switches, stored, dtype),
        "README.md": checkpoint_card.text(subject, "mlx", _CARD, "text-generation", notes),
    }
    return PackageContent(content, notes)


def _stored(
    written: Mapping[str, Parameter], dtype: np.dtype[np.generic], scratch: Path
) -> tuple[dict[str, Path | bytes], dict[str, MlxStorage]]:
    """The files with the parameters, and how each parameter is stored."""
    shards, stored = ShardWriter(scratch, "mlx"), {}
    for name, parameter in written.items():
        tensors, stored[name] = store(name, parameter.read(), dtype)
        shards.add(tensors)
    return shards.files(), stored


def _companions(artifact: Artifact) -> dict[str, Path | bytes]:
    """Configuration and tokenizer, which mlx-lm reads with transformers."""
    names = [name for name in COMPANIONS if name in artifact.manifest.files]
    if not set(names) & set(_TOKENIZERS):
        raise UsageError(
            f"it has none of {', '.join(_TOKENIZERS)}, and mlx-lm needs a tokenizer",
            where=str(artifact.path),
            hint="save the model's tokenizer in its folder, and build again",
        )
    return {name: artifact.path / name for name in names}


def _notes(stored: Mapping[str, MlxStorage], dtype: np.dtype[np.generic]) -> tuple[str, ...]:
    forms = Counter(
        f"{each.form.bits}-bit codes in groups of {each.form.size}" if each.form else "floats"
        for each in stored.values()
    )
    notes = [
        "tensors: " + ", ".join(f"{count} with {form}" for form, count in sorted(forms.items()))
    ]
    loose = [name for name, each in stored.items() if each.loosened]
    if loose:
        notes.append(
            f"{len(loose)} quantized tensors are stored as floats ({loose[0]}, …): MLX has no form "
            "for their blocks, or a bias is too large for the dtype of the scales"
        )
    rounded = [name for name, each in stored.items() if each.rounded]
    if rounded:
        notes.append(
            f"{len(rounded)} tensors are rounded to {dtype}, the dtype in which MLX computes "
            f"({rounded[0]}, …)"
        )
    if largest := max(each.rounding for each in stored.values()):
        notes.append(
            "codes and scales are those of the artifact; the biases that MLX has for zero points "
            f"are rounded to {dtype}, which changes a weight by at most {largest:.1e} of its scale"
        )
    return tuple(notes)
