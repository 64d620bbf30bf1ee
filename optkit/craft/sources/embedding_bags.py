"""torch's EmbeddingBag as lookups and sums.

torch's exporter writes a loop over sequences for each bag, which TensorRT refuses and which is slow
on a CPU. A bag of a fixed number of entries (a 2-D input) is a lookup and a sum over the entries:
Gather and ReduceSum. Bags that offsets divide are a lookup of all entries and a product with a
matrix of zeros and ones, [bags, entries], which says which entry is in which bag. TensorRT takes
it; for ONNX Runtime the rule `fusion.ort.bags` replaces it by a sum of each entry into its bag.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_SUM, _MEAN = 0, 1  # modes of aten::embedding_bag


@contextmanager
def gathered() -> Iterator[None]:
    """During the body, `torch.nn.functional.embedding_bag` with bags in the rows of a 2-D input is
    a lookup and a reduction. Other calls are as before."""
    from torch.nn import functional

    original = functional.embedding_bag
    functional.embedding_bag = _rows(original)
    try:
        yield
    finally:
        functional.embedding_bag = original


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program with sums and means over bags that offsets divide as a lookup and a product.
    Unchanged if it has no bags."""
    import torch

    operators = torch.ops.aten.embedding_bag
    kinds = {operators.default, operators.padding_idx}
    nodes = [node for node in program.graph.nodes if node.target in kinds]
    # an operator of a decomposition that fails would fail later with a worse message
    if not nodes or not all(_divides(node.args) for node in nodes):
        return program
    decomposition: ExportedProgram = program.run_decompositions(dict.fromkeys(kinds, _product))
    return decomposition


def _rows(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`functional.embedding_bag` as torch defines it, except for 2-D inputs."""
    from torch.nn import functional

    signature = inspect.signature(original)

    def embedding_bag(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        entries, weight = given["input"], given["weight"]
        shares, padding = given["per_sample_weights"], given["padding_idx"]
        padded_max = padding is not None and given["mode"] == "max"
        if given["max_norm"] is not None or padded_max or entries.dim() != 2:
            return original(*args, **kwargs)
        found = functional.embedding(entries, weight)  # [bags, entries, width]
        if given["mode"] == "max":
            return found.amax(1)
        if shares is None and padding is None:
            return found.mean(1) if given["mode"] == "mean" else found.sum(1)
        kept = found.new_ones(1) if shares is None else shares
        if padding is not None:
            kept = kept * (entries != padding % weight.shape[0]).to(weight.dtype)
        bags = (found * kept.unsqueeze(-1)).sum(1)
        if given["mode"] == "mean":
            bags = bags / kept.sum(1, keepdim=True).clamp(min=1)
        return bags

    return embedding_bag


def _divides(args: tuple[Any, ...]) -> bool:
    """Whether `_product` computes an operator with these arguments."""
    return len(args) < 5 or args[4] in (_SUM, _MEAN)


def _product(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """aten::embedding_bag: [bags, width], and three results that only its gradient reads.

    Bag b has the entries from offsets[b] to offsets[b + 1]; the last one ends with `indices`,
    unless `include_last_offset` gives its end.
    """
    import torch

    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    begin, end = offsets[:-1], offsets[1:]
    if not include_last_offset:
        entries = torch.full([1], indices.shape[0], dtype=offsets.dtype, device=offsets.device)
        begin, end = offsets, torch.cat([offsets[1:], entries])
    row, begins, ends = places.unsqueeze(0), begin.unsqueeze(1), end.unsqueeze(1)
    inside = ((row >= begins) & (row < ends)).to(weight.dtype)  # [bags, entries]
    found = torch.nn.functional.embedding(indices, weight)  # [entries, width]
    counts = (end - begin).unsqueeze(1).to(weight.dtype)
    if padding_idx is not None:
        kept = (indices != padding_idx % weight.shape[0]).to(weight.dtype).unsqueeze(1)
        found, counts = found * kept, inside @ kept
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(1)
    sums = inside @ found
    if mode == _MEAN:
        sums = sums / counts.clamp(min=1)
    none = offsets.new_zeros([0])
    return sums, none, none, none
