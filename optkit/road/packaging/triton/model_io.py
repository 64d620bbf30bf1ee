"""The inputs and outputs of a graph as Triton describes them.

Triton batches requests only if axis 0 is the same dynamic axis in every input and output; then
`dims` has the other axes alone. Otherwise `dims` has all axes, and a request is run as it is. A
dynamic axis is -1. No shape may be empty: a tensor with no other axis has the dims [1].

These are the rules of Triton's core (model_config_utils.cc) and of its ONNX Runtime backend
(onnxruntime.cc) of June 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optkit.facts.codec import from_json
from optkit.facts.errors import IntegrityError, UsageError
from optkit.facts.tensors import AxisRange, TensorInfo, size_of
from optkit.road.packaging.triton.model_config import ModelTensor, ModelWarmup, Reshape, WarmupInput
from optkit.road.packaging.triton.pbtxt import Symbol

_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
"""optkit's name of a dtype → Triton's, without its TYPE_."""


@dataclass(frozen=True)
class ModelIO:
    """The inputs and outputs of a model.

    max_batch_size  0: Triton does not batch requests
    why             why it does not; None: it does
    tuned           the tuned batch; 1 if requests are not batched
    sizes           the tuned size of each axis
    infos           the inputs as the graph has them
    """

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    max_batch_size: int
    why: str | None
    tuned: int
    sizes: Mapping[str, int]
    infos: tuple[TensorInfo, ...]

    @classmethod
    def of(
        cls,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        axes: Mapping[str, AxisRange],
        where: str,
    ) -> ModelIO:
        """Raises UsageError, with the tensor, for what Triton cannot say."""
        why = _no_batches([*inputs, *outputs], axes)
        batch = None if why else axes[str(inputs[0].shape[0])]
        batched = batch is not None
        return cls(
            tuple(_tensor(info, batched, f"{where}: input {info.name!r}") for info in inputs),
            tuple(_tensor(info, batched, f"{where}: output {info.name!r}") for info in outputs),
            batch.max if batch else 0,
            why,
            batch.opt if batch else 1,
            {name: span.opt for name, span in axes.items()},
            tuple(inputs),
        )

    def warmup(self, batches: Sequence[int]) -> tuple[ModelWarmup, ...]:
        """A request of zeros for each batch size, at the tuned sizes of the other axes. Empty if an
        axis has no known size, or if a tensor would be empty."""
        first = 1 if self.max_batch_size else 0
        try:
            dims = {
                info.name: tuple(size_of(dim, self.sizes) for dim in info.shape[first:]) or (1,)
                for info in self.infos
            }
        except KeyError:
            return ()
        if any(0 in each for each in dims.values()):
            return ()
        samples = {
            tensor.name: WarmupInput(tensor.data_type, dims[tensor.name]) for tensor in self.inputs
        }
        return tuple(ModelWarmup(f"batch {batch}", batch, samples) for batch in batches)


def axes_of_recipe(recipe: Mapping[str, object], where: str) -> dict[str, AxisRange]:
    """The ranges of the axes in a record of a recipe. Raises IntegrityError."""
    try:
        return from_json(dict[str, AxisRange], recipe.get("axes") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError("damaged: the ranges of the axes", where=where) from error


def _no_batches(infos: Sequence[TensorInfo], axes: Mapping[str, AxisRange]) -> str | None:
    """Why Triton cannot batch requests; None if it can."""
    firsts = {info.shape[0] if info.shape else 1 for info in infos}
    axis = firsts.pop()
    if firsts or isinstance(axis, int):
        return "axis 0 is not the same dynamic axis in every input and output"
    if axis not in axes:
        return f"axis {axis!r} has no range in the recipe"
    if axes[axis].min > 1:
        return f"a batch has at least {axes[axis].min} samples, but Triton also sends one alone"
    return None


def _tensor(info: TensorInfo, batched: bool, where: str) -> ModelTensor:
    if info.dtype not in _TYPES:
        raise UsageError(f"Triton has no data type for {info.dtype}", where=where)
    if 0 in info.shape:
        raise UsageError("Triton has no tensors without elements", where=where)
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in info.shape[1 if batched else 0 :])
    return ModelTensor(
        info.name,
        Symbol(f"TYPE_{_TYPES[info.dtype]}"),
        dims or (1,),
        # without batches, the backend itself makes a scalar of it
        Reshape() if batched and not dims else None,
    )
