"""Where codes wait until the graph is written: in memory, or in a file if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.ground import graph
from optkit.ground.store import storage_errors

# bytes in use per number that is solved: the weight, its error and its codes, or the moments
_SOLVING = 32


@dataclass(frozen=True)
class CodeStore:
    """`place`: the file to which codes are added; None: they stay in memory. `memory_bytes`: how
    much of the memory a solver may use. `told`: gets the number of codes that were kept."""

    place: Path | None = None
    memory_bytes: float = inf
    told: Callable[[int], None] = lambda count: None

    def fits(self, numbers: int) -> bool:
        """Whether the memory suffices to solve weights with so many numbers together. Second
        moments beside them count too."""
        return _SOLVING * numbers <= self.memory_bytes

    def keep(self, codes: np.ndarray) -> ir.TensorProtocol:
        """The codes; no longer in memory if there is a file."""
        self.told(codes.size)
        tensor = ir.Tensor(np.ascontiguousarray(codes))
        if self.place is None:
            return tensor
        name, folder = self.place.name, self.place.parent
        with storage_errors(folder), self.place.open("ab") as file:
            start = file.tell()
            file.write(tensor.tobytes())
        return graph.MappedTensor(
            name, start, tensor.nbytes, tensor.dtype, shape=tensor.shape, name="", base_dir=folder
        )


IN_MEMORY = CodeStore()
